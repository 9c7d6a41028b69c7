//! Raw MIOpen: types, constants and one table of C functions
