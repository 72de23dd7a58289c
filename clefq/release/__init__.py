"""From checkpoint to release: what changed, the model card, the evidence and the upload folder."""
