//! The program that lists instructions (`examples/instructions`): its parts, and what they find in a code object.

#[path = "../examples/instructions/containers.rs"]
mod containers;
#[path = "../examples/instructions/listing.rs"]
mod listing;
mod support;

use listing::Listing;
use support::{Kernel, NUMBERS, Source, code_object};

/// v_cubeid_f32 v0, v0, v0, v0; s_endpgm
const CUBE: &[u32] = &[0xd544_0000, 0x0402_0100, 0xbf81_0000];

fn list(source: &Source) -> Listing {
    let mut listing = Listing::default();
    containers::code_objects(&code_object(source), &mut |object: &[u8]| {
        listing.add("file", object).map_err(containers::Error::Elf)
    })
    .expect("a code object");
    listing
}

#[test]
fn kernels_of_a_code_object_are_found_by_their_descriptors() {
    let both = [Kernel::new("numbers", NUMBERS), Kernel::new("cube", CUBE)];
    let whole = list(&Source::new(&both[..1]));
    assert!(whole.is_complete(&[]));
    assert_eq!(
        whole.to_string(),
        "1 code objects for gfx1030 (0 for other GPUs), 1 kernels, 7 instructions of 7 mnemonics; 0 instructions of \
         0 kinds are not executed\n"
    );
    // The zeros between the kernels are no instructions.
    let lacking = list(&Source::new(&both));
    assert_eq!((lacking.objects(), lacking.is_complete(&[])), (1, false));
    let text = lacking.to_string();
    assert!(text.contains("2 kernels, 9 instructions of 7 mnemonics; 1 instructions of 1 kinds"), "{text}");
    assert!(
        text.contains("not executed: v_cubeid_f32, 1 times, first in file: cube+0x0: d5440000 04020100"),
        "{text}"
    );
}

#[test]
fn code_objects_for_other_gpus_are_left_out() {
    // gfx1100
    let listing = list(&Source { machine: 0x41, ..Source::new(&[Kernel::new("cube", CUBE)]) });
    assert_eq!((listing.objects(), listing.is_complete(&[])), (0, true));
    assert!(
        listing.to_string().starts_with("0 code objects for gfx1030 (1 for other GPUs), 0 kernels, 0 instr")
    );
}
