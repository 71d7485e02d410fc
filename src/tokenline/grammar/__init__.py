"""What an answer may be: descriptions of it (`spec`), and their compilation to masks of token ids (`compiler`)."""
