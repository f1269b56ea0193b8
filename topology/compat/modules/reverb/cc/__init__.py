"""`reverb.cc`: of the original's protocol buffers, those that programs build."""
