"""`glmserve bench`: what a client of a running server sees, measured over HTTP."""
