"""The Clef model format: records, prompts, the joint head, answers and checkpoint folders."""
