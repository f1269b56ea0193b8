"""`reverb.platform`: checkpointers."""
