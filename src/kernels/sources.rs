//! The shader files, embedded. `tests/tidy.rs` checks that none is missing.

macro_rules! shaders {
    ($($path:literal),* $(,)?) => {
        /// Every shader file: its path under `shaders/` without the ending, and its text.
        pub const SOURCES: &[(&str, &str)] =
            &[$(($path, include_str!(concat!("../../shaders/", $path, ".wgsl")))),*];
    };
}

shaders!["lib/element", "lib/grid", "lib/row", "matmul/portable", "matmul/software",];
