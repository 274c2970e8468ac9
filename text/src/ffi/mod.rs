//! The C ABI of `tandem_text.h`: this module and the ones below hold all of `extern "C"`. Every
//! function that can panic catches that and reports an error; every pointer that C++ gets is a `Box` or a
//! `Vec` of this library and comes back through a `_free`.

mod constraint;
mod template;
mod tokenizer;

use crate::Result;
use std::borrow::Cow;
use std::cell::RefCell;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::Once;

#[repr(C)]
#[derive(Clone, Copy)]
pub struct TtStr {
    data: *const u8,
    size: usize,
}

#[repr(C)]
pub struct TtText {
    data: *mut u8,
    size: usize,
    capacity: usize,
}

#[repr(C)]
pub struct TtIds {
    data: *mut u32,
    size: usize,
    capacity: usize,
}

impl TtStr {
    const EMPTY: TtStr = TtStr { data: std::ptr::null(), size: 0 };

    /// Borrowed from a handle: valid as the header says.
    fn of(bytes: &[u8]) -> TtStr {
        TtStr { data: bytes.as_ptr(), size: bytes.len() }
    }

    /// # Safety: `data` points at `size` readable bytes, or `size` is 0.
    unsafe fn bytes<'a>(self) -> &'a [u8] {
        if self.size == 0 || self.data.is_null() {
            &[]
        } else {
            std::slice::from_raw_parts(self.data, self.size)
        }
    }
    /// Invalid UTF-8 becomes U+FFFD.
    unsafe fn text<'a>(self) -> Cow<'a, str> {
        String::from_utf8_lossy(self.bytes())
    }
}

unsafe fn slice<'a, T>(data: *const T, n: usize) -> &'a [T] {
    if data.is_null() || n == 0 {
        &[]
    } else {
        std::slice::from_raw_parts(data, n)
    }
}

unsafe fn put_text(out: *mut TtText, s: String) {
    if !out.is_null() {
        let mut v = std::mem::ManuallyDrop::new(s.into_bytes());
        *out = TtText { data: v.as_mut_ptr(), size: v.len(), capacity: v.capacity() };
    }
}

unsafe fn put_ids(out: *mut TtIds, ids: Vec<u32>) {
    if !out.is_null() {
        let mut v = std::mem::ManuallyDrop::new(ids);
        *out = TtIds { data: v.as_mut_ptr(), size: v.len(), capacity: v.capacity() };
    }
}

thread_local! {
    /// Where this thread's last panic came from.
    static PANIC_AT: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Keeps the place of a panic for the error message, instead of a back-trace on stderr: the log is
/// the caller's business. All Rust code of the program is ours, so the hook is too.
fn hook_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        std::panic::set_hook(Box::new(|panic| {
            let at = panic.location().map(|l| format!(" ({}:{})", l.file(), l.line()));
            PANIC_AT.with(|p| *p.borrow_mut() = at.unwrap_or_default());
        }));
    });
}

/// The one place where a panic stops: `bad` is what the caller then gets.
unsafe fn guarded<T>(error: *mut TtText, bad: T, f: impl FnOnce() -> Result<T>) -> T {
    hook_panics();
    let message = match catch_unwind(AssertUnwindSafe(f)) {
        Ok(Ok(value)) => return value,
        Ok(Err(message)) => message,
        Err(panic) => {
            let what = panic
                .downcast_ref::<&str>()
                .map(|s| s.to_string())
                .or_else(|| panic.downcast_ref::<String>().cloned());
            let _ = catch_unwind(AssertUnwindSafe(|| drop(panic))); // a drop could panic again
            let at = PANIC_AT.with(|p| p.take());
            format!("internal error: {}{at}", what.unwrap_or_default())
        }
    };
    put_text(error, message);
    bad
}

fn boxed<T>(value: T) -> *mut T {
    Box::into_raw(Box::new(value))
}

unsafe fn free<T>(p: *mut T) {
    if !p.is_null() {
        let _ = catch_unwind(AssertUnwindSafe(|| drop(Box::from_raw(p))));
    }
}

fn null() -> String {
    "null handle".into()
}

#[no_mangle]
pub unsafe extern "C" fn tt_text_free(t: *mut TtText) {
    if !t.is_null() && !(*t).data.is_null() {
        drop(Vec::from_raw_parts((*t).data, (*t).size, (*t).capacity));
        *t = TtText { data: std::ptr::null_mut(), size: 0, capacity: 0 };
    }
}

#[no_mangle]
pub unsafe extern "C" fn tt_ids_free(t: *mut TtIds) {
    if !t.is_null() && !(*t).data.is_null() {
        drop(Vec::from_raw_parts((*t).data, (*t).size, (*t).capacity));
        *t = TtIds { data: std::ptr::null_mut(), size: 0, capacity: 0 };
    }
}

/// Panics inside the library, so that a test can show that C++ only sees an error.
#[no_mangle]
pub unsafe extern "C" fn tt_test_panic(error: *mut TtText) -> bool {
    guarded(error, false, || panic!("deliberate"))
}
