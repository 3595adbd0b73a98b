//! Filled in below: see `model_tests`.
