//! Calls of libraries that read files: a panic of the library becomes an error about the file.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::Once;
use std::sync::atomic::{AtomicUsize, Ordering};

thread_local! {
    static IS_GUARDED: Cell<bool> = const { Cell::new(false) };
}

/// Number of threads in a guarded call.
static GUARDED: AtomicUsize = AtomicUsize::new(0);

/// Runs `call`, in which a library reads a file. A panic there prints nothing and unwinds no further.
///
/// # Errors
/// The library's panic message, on one line.
pub(crate) fn foreign<T>(call: impl FnOnce() -> T) -> Result<T, String> {
    listen();
    let before = IS_GUARDED.replace(true);
    GUARDED.fetch_add(1, Ordering::Relaxed);
    // Data that the call leaves half done is dropped with its result, since callers turn it into an error.
    let done = catch_unwind(AssertUnwindSafe(call));
    GUARDED.fetch_sub(1, Ordering::Relaxed);
    IS_GUARDED.set(before);
    done.map_err(|panic| {
        let said = panic.downcast_ref::<String>().map(String::as_str);
        let said = said.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("it panicked");
        said.split_whitespace().collect::<Vec<_>>().join(" ")
    })
}

/// Installs a panic hook before the existing one. It suppresses messages of panics in guarded calls.
fn listen() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = take_hook();
        set_hook(Box::new(move |panic| {
            // Threads without a name belong to a library's pool, which passes the panic on to the caller.
            let in_pool = || GUARDED.load(Ordering::Relaxed) > 0 && std::thread::current().name().is_none();
            if !IS_GUARDED.get() && !in_pool() {
                before(panic);
            }
        }));
    });
}

#[cfg(test)]
mod tests {
    use super::foreign;

    #[test]
    fn a_panic_is_what_it_said() {
        assert_eq!(foreign(|| 3), Ok(3));
        let number = 7;
        assert_eq!(foreign(|| -> u32 { panic!("no\nsuch {number}") }), Err("no such 7".to_string()));
        assert_eq!(foreign(|| -> u32 { panic!("fixed") }), Err("fixed".to_string()));
        let nested = foreign(|| foreign(|| -> u32 { panic!("inner") }));
        assert_eq!(nested, Ok(Err("inner".to_string())));
    }
}
