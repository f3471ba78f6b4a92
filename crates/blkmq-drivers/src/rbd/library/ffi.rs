//! What the driver uses of `librados.so.2` and `librbd.so.1`: declarations by hand, and the table that a system's
//! libraries fill, or those that a test makes up.
//!
//! The names of types are C's, so that a test can have a C compiler compare each function with the headers of Ceph.
#![expect(non_camel_case_types, reason = "these are C's names")]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::fmt;
use std::mem::transmute;

/// `struct iovec`.
pub(super) type iovec = libc::iovec;

/// A connection to a cluster.
pub(super) type rados_t = *mut c_void;

/// A pool, or a namespace in it.
pub(super) type rados_ioctx_t = *mut c_void;

/// An image that is open.
pub(super) type rbd_image_t = *mut c_void;

/// What was asked for, until it is released.
pub(super) type rbd_completion_t = *mut c_void;

/// Called by librbd when a request is done.
pub(super) type rbd_callback_t = Option<unsafe extern "C" fn(rbd_completion_t, *mut c_void)>;

/// Called by librbd when an image has changed.
pub(super) type rbd_update_callback_t = Option<unsafe extern "C" fn(*mut c_void)>;

/// What an image is.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct rbd_image_info_t {
    pub(super) size: u64,
    pub(super) obj_size: u64,
    pub(super) num_objs: u64,
    pub(super) order: c_int,
    pub(super) block_name_prefix: [c_char; 24],
    pub(super) parent_pool: i64,
    pub(super) parent_name: [c_char; 96],
}

/// An option of librbd, and its value for an image.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct rbd_config_option_t {
    pub(super) name: *mut c_char,
    pub(super) value: *mut c_char,
    pub(super) source: c_int,
}

/// `RBD_WRITE_ZEROES_FLAG_THICK_PROVISION`: what is zeroed keeps its room.
pub(super) const THICK_PROVISION: c_int = 1;

/// `EVENT_TYPE_EVENTFD`: completions are told by an eventfd.
pub(super) const EVENTFD: c_int = 2;

macro_rules! functions {
    ($($name:ident($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// The functions of both libraries.
        #[derive(Clone, Copy)]
        pub(in crate::rbd) struct Api {
            $(pub(super) $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl Api {
            /// The table with what `find` finds.
            ///
            /// # Errors
            /// That of `find`.
            ///
            /// # Safety
            /// `find` returns the address of a function that has this name and the type that is declared here.
            pub(super) unsafe fn find<E>(find: impl Fn(&'static CStr) -> Result<*mut c_void, E>) -> Result<Self, E> {
                $(
                    let name = const {
                        match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                            Ok(name) => name,
                            Err(_) => panic!("a name has no byte 0"),
                        }
                    };
                    let address = find(name)?;
                    // SAFETY: the caller promises that a function with this type is there.
                    let $name = unsafe {
                        transmute::<*mut c_void, unsafe extern "C" fn($($argument),*) $(-> $result)?>(address)
                    };
                )*
                Ok(Self { $($name),* })
            }

            /// Each function as it is declared: its name, its arguments, its result.
            #[cfg(test)]
            pub(super) const DECLARED: &[(&str, &[&str], &str)] = &[
                $((stringify!($name), &[$(stringify!($argument)),*], stringify!($($result)?))),*
            ];
        }
    };
}

functions! {
    rados_create2(*mut rados_t, *const c_char, *const c_char, u64) -> c_int;
    rados_conf_read_file(rados_t, *const c_char) -> c_int;
    rados_conf_set(rados_t, *const c_char, *const c_char) -> c_int;
    rados_connect(rados_t) -> c_int;
    rados_shutdown(rados_t);
    rados_ioctx_create(rados_t, *const c_char, *mut rados_ioctx_t) -> c_int;
    rados_ioctx_set_namespace(rados_ioctx_t, *const c_char);
    rados_ioctx_destroy(rados_ioctx_t);
    rbd_version(*mut c_int, *mut c_int, *mut c_int);
    rbd_open(rados_ioctx_t, *const c_char, *mut rbd_image_t, *const c_char) -> c_int;
    rbd_open_read_only(rados_ioctx_t, *const c_char, *mut rbd_image_t, *const c_char) -> c_int;
    rbd_close(rbd_image_t) -> c_int;
    rbd_stat(rbd_image_t, *mut rbd_image_info_t, usize) -> c_int;
    rbd_get_size(rbd_image_t, *mut u64) -> c_int;
    rbd_config_image_list(rbd_image_t, *mut rbd_config_option_t, *mut c_int) -> c_int;
    rbd_config_image_list_cleanup(*mut rbd_config_option_t, c_int);
    rbd_update_watch(rbd_image_t, *mut u64, rbd_update_callback_t, *mut c_void) -> c_int;
    rbd_update_unwatch(rbd_image_t, u64) -> c_int;
    rbd_set_image_notification(rbd_image_t, c_int, c_int) -> c_int;
    rbd_poll_io_events(rbd_image_t, *mut rbd_completion_t, c_int) -> c_int;
    rbd_aio_create_completion(*mut c_void, rbd_callback_t, *mut rbd_completion_t) -> c_int;
    rbd_aio_get_arg(rbd_completion_t) -> *mut c_void;
    rbd_aio_get_return_value(rbd_completion_t) -> isize;
    rbd_aio_release(rbd_completion_t);
    rbd_aio_readv(rbd_image_t, *const iovec, c_int, u64, rbd_completion_t) -> c_int;
    rbd_aio_writev(rbd_image_t, *const iovec, c_int, u64, rbd_completion_t) -> c_int;
    rbd_aio_discard(rbd_image_t, u64, u64, rbd_completion_t) -> c_int;
    rbd_aio_write_zeroes(rbd_image_t, u64, usize, rbd_completion_t, c_int, c_int) -> c_int;
    rbd_aio_flush(rbd_image_t, rbd_completion_t) -> c_int;
}

impl fmt::Debug for Api {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Api").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;
    use std::mem::{offset_of, size_of};
    use std::path::Path;
    use std::process::Command;

    use super::*;

    /// Returns a Rust type as C writes it.
    fn in_c(text: &str) -> String {
        let text = text.trim();
        if let Some(rest) = text.strip_prefix("*mut ") {
            return format!("{} *", in_c(rest));
        }
        if let Some(rest) = text.strip_prefix("*const ") {
            return format!("const {} *", in_c(rest));
        }
        match text {
            "" | "c_void" => "void",
            "c_int" => "int",
            "c_char" => "char",
            "u64" => "uint64_t",
            "usize" => "size_t",
            "isize" => "ssize_t",
            "iovec" => "struct iovec",
            "rados_t" | "rados_ioctx_t" | "rbd_image_t" | "rbd_completion_t" => text,
            "rbd_callback_t" | "rbd_update_callback_t" | "rbd_image_info_t" | "rbd_config_option_t" => text,
            _ => panic!("{text} has no name in C here"),
        }
        .to_owned()
    }

    /// What a C compiler accepts only if the declarations are those of the headers.
    fn comparison() -> String {
        let mut text = "#include <stddef.h>\n#include <sys/uio.h>\n#include <rbd/librbd.h>\n".to_owned();
        for (name, arguments, result) in Api::DECLARED {
            let arguments: Vec<_> = arguments.iter().map(|argument| in_c(argument)).collect();
            let kind = format!("{} (*)({})", in_c(result), arguments.join(", "));
            writeln!(text, "_Static_assert(__builtin_types_compatible_p(__typeof__(&{name}), {kind}), \"{name}\");")
                .expect("a text takes it");
        }
        let numbers = [
            ("sizeof(rbd_image_info_t)", size_of::<rbd_image_info_t>()),
            ("offsetof(rbd_image_info_t, obj_size)", offset_of!(rbd_image_info_t, obj_size)),
            ("offsetof(rbd_image_info_t, parent_pool)", offset_of!(rbd_image_info_t, parent_pool)),
            ("offsetof(rbd_image_info_t, parent_name)", offset_of!(rbd_image_info_t, parent_name)),
            ("sizeof(rbd_config_option_t)", size_of::<rbd_config_option_t>()),
            ("offsetof(rbd_config_option_t, value)", offset_of!(rbd_config_option_t, value)),
            ("RBD_WRITE_ZEROES_FLAG_THICK_PROVISION", THICK_PROVISION as usize),
            ("EVENT_TYPE_EVENTFD", EVENTFD as usize),
        ];
        for (what, number) in numbers {
            writeln!(text, "_Static_assert({what} == {number}, \"{what}\");").expect("a text takes it");
        }
        text
    }

    /// Red if a declaration is not that of Ceph's headers. The step `rbd` has the headers.
    #[test]
    #[cfg_attr(miri, ignore = "a C compiler is another program")]
    fn declarations_are_those_of_the_headers() {
        assert!(Api::DECLARED.len() > 20 && in_c("*mut c_char") == "char *");
        if !Path::new("/usr/include/rbd/librbd.h").exists() {
            println!("NOTE Ceph's headers are not here: Debian's package librbd-dev has them");
            return;
        }
        let folder = tempfile::tempdir().expect("there is room");
        let compile = |text: String| {
            let path = folder.path().join("compare.c");
            std::fs::write(&path, text).expect("there is room");
            let compiler = Command::new("cc").args(["-fsyntax-only", "-std=gnu11"]).arg(path).output();
            let output = compiler.expect("a system with the headers has a C compiler");
            (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
        };
        let (is_same, said) = compile(comparison());
        assert!(is_same, "{said}");
        let (is_same, _) = compile(comparison().replacen("uint64_t", "uint32_t", 1));
        assert!(!is_same, "the compiler compares");
    }
}
