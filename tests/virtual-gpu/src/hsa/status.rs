//! Status codes (`hsa_status_t`).

use std::ffi::{CStr, c_char};
use std::mem::MaybeUninit;

/// An `hsa_status_t`. Callbacks may return any number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
#[must_use]
pub struct Status(pub u32);

macro_rules! statuses {
    ($($name:ident = $value:literal, $c:literal, $text:literal;)*) => {
        impl Status {
            $(#[doc = $text] pub const $name: Self = Self($value);)*

            /// AMD's name of the status and what it means.
            pub fn text(self) -> Option<&'static CStr> {
                match self {
                    $(Self::$name => CStr::from_bytes_with_nul(concat!($c, ": ", $text, "\0").as_bytes()).ok(),)*
                    _ => None,
                }
            }
        }
    };
}

statuses! {
    SUCCESS = 0, "HSA_STATUS_SUCCESS", "The call succeeded.";
    INFO_BREAK = 1, "HSA_STATUS_INFO_BREAK", "A traversal ended early.";
    INVALID_MEMORY_POOL = 40, "HSA_STATUS_ERROR_INVALID_MEMORY_POOL", "The memory pool is not valid.";
    MEMORY_APERTURE_VIOLATION = 41, "HSA_STATUS_ERROR_MEMORY_APERTURE_VIOLATION",
        "A kernel left its LDS or its private memory.";
    ILLEGAL_INSTRUCTION = 42, "HSA_STATUS_ERROR_ILLEGAL_INSTRUCTION",
        "A kernel reached an instruction that the virtual GPU lacks.";
    MEMORY_FAULT = 43, "HSA_STATUS_ERROR_MEMORY_FAULT", "A kernel accessed memory outside every allocation.";
    NOT_SUPPORTED = 47, "HSA_STATUS_ERROR_NOT_SUPPORTED", "The virtual GPU does not support this.";
    ERROR = 0x1000, "HSA_STATUS_ERROR", "A generic error.";
    INVALID_ARGUMENT = 0x1001, "HSA_STATUS_ERROR_INVALID_ARGUMENT", "An argument is not valid.";
    INVALID_QUEUE_CREATION = 0x1002, "HSA_STATUS_ERROR_INVALID_QUEUE_CREATION", "No such queue can be made.";
    INVALID_ALLOCATION = 0x1003, "HSA_STATUS_ERROR_INVALID_ALLOCATION", "The allocation is not valid.";
    INVALID_AGENT = 0x1004, "HSA_STATUS_ERROR_INVALID_AGENT", "The agent is not valid.";
    INVALID_SIGNAL = 0x1006, "HSA_STATUS_ERROR_INVALID_SIGNAL", "The signal is not valid.";
    INVALID_QUEUE = 0x1007, "HSA_STATUS_ERROR_INVALID_QUEUE", "The queue is not valid.";
    OUT_OF_RESOURCES = 0x1008, "HSA_STATUS_ERROR_OUT_OF_RESOURCES", "The memory or another resource is used up.";
    INVALID_PACKET_FORMAT = 0x1009, "HSA_STATUS_ERROR_INVALID_PACKET_FORMAT", "An AQL packet is malformed.";
    RESOURCE_FREE = 0x100A, "HSA_STATUS_ERROR_RESOURCE_FREE", "A resource could not be released.";
    NOT_INITIALIZED = 0x100B, "HSA_STATUS_ERROR_NOT_INITIALIZED", "hsa_init was not called.";
    INCOMPATIBLE_ARGUMENTS = 0x100D, "HSA_STATUS_ERROR_INCOMPATIBLE_ARGUMENTS", "Arguments contradict each other.";
    INVALID_ISA = 0x100F, "HSA_STATUS_ERROR_INVALID_ISA", "The instruction set is not valid.";
    INVALID_CODE_OBJECT = 0x1010, "HSA_STATUS_ERROR_INVALID_CODE_OBJECT", "The code object is not valid.";
    INVALID_EXECUTABLE = 0x1011, "HSA_STATUS_ERROR_INVALID_EXECUTABLE", "The executable is not valid.";
    FROZEN_EXECUTABLE = 0x1012, "HSA_STATUS_ERROR_FROZEN_EXECUTABLE", "The executable is frozen.";
    INVALID_SYMBOL_NAME = 0x1013, "HSA_STATUS_ERROR_INVALID_SYMBOL_NAME", "There is no symbol of that name.";
    VARIABLE_ALREADY_DEFINED = 0x1014, "HSA_STATUS_ERROR_VARIABLE_ALREADY_DEFINED",
        "The variable is defined already.";
    VARIABLE_UNDEFINED = 0x1015, "HSA_STATUS_ERROR_VARIABLE_UNDEFINED", "A variable is not defined.";
    EXCEPTION = 0x1016, "HSA_STATUS_ERROR_EXCEPTION", "A kernel trapped: an abort or an assertion.";
    INVALID_EXECUTABLE_SYMBOL = 0x1019, "HSA_STATUS_ERROR_INVALID_EXECUTABLE_SYMBOL", "The symbol is not valid.";
    INVALID_FILE = 0x1020, "HSA_STATUS_ERROR_INVALID_FILE", "The file can't be read.";
    INVALID_CODE_OBJECT_READER = 0x1021, "HSA_STATUS_ERROR_INVALID_CODE_OBJECT_READER", "The reader is not valid.";
}

impl Status {
    /// The status of an operation whose error is a status.
    pub fn of(result: Result<(), Self>) -> Self {
        result.err().unwrap_or(Self::SUCCESS)
    }
}

/// HSA 1.2, section 2.2.2: the name of a status. Unknown numbers are an invalid argument.
#[unsafe(no_mangle)]
pub extern "C" fn hsa_status_string(status: Status, text: Option<&mut MaybeUninit<*const c_char>>) -> Status {
    match (status.text(), text) {
        (Some(found), Some(text)) => {
            text.write(found.as_ptr());
            Status::SUCCESS
        }
        _ => Status::INVALID_ARGUMENT,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_have_texts() {
        let mut text = MaybeUninit::uninit();
        assert_eq!(hsa_status_string(Status::MEMORY_FAULT, Some(&mut text)), Status::SUCCESS);
        // SAFETY: the call succeeded, so it wrote a pointer to a static string.
        let text = unsafe { CStr::from_ptr(text.assume_init()) };
        assert!(text.to_bytes().starts_with(b"HSA_STATUS_ERROR_MEMORY_FAULT: "));
        assert_eq!(hsa_status_string(Status(2), Some(&mut MaybeUninit::uninit())), Status::INVALID_ARGUMENT);
        assert_eq!(hsa_status_string(Status::SUCCESS, None), Status::INVALID_ARGUMENT);
    }
}
