//! The block layer.
