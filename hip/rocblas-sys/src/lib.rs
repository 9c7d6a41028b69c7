//! Raw rocBLAS: types, constants and one table of C functions
