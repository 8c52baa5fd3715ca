"""On a machine without a GPU, SGLang's rotary embedding asks vLLM for its kernel; here it finds one in plain torch."""
