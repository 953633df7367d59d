"""How sessions end without anybody's stop, and what becomes of what they leave."""
