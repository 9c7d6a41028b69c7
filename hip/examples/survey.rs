//! Prints what this machine has, provider by provider.

fn main() {
    for report in hip::survey() {
        print!("{report}");
    }
}
