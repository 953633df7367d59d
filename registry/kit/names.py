"""Names that people give: letters, digits, and hyphens between them, at most 63 characters."""

import re

# The lookahead is what bounds the length: any number of hyphens may stand between two letters.
NAME = re.compile(r"(?![a-zA-Z0-9-]{64})[a-zA-Z0-9](-*[a-zA-Z0-9])*")
NAME_RULE = "letters, digits, and hyphens between them, at most 63"
