//! Integration tests of the whole
