"""Models: loading configurations, tokenizers and weights from Hugging Face folders, the packed attention function
that is registered with transformers, and the tiny builtin model. Model code knows nothing of parallelism."""
