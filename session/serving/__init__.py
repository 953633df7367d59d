"""One merged model behind OpenAI's wire, in a process of its own: `modelyard serve-model DIR`."""
