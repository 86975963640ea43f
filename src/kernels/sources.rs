//! The embedded shader files: everything under `shaders/`.

use include_dir::{Dir, include_dir};

static SHADERS: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/shaders");

/// Every shader file: its path below `shaders/` without extension (`matmul/portable`), and its text.
pub fn sources() -> impl Iterator<Item = (String, &'static str)> {
    let mut folders = vec![&SHADERS];
    std::iter::from_fn(move || {
        let folder = folders.pop()?;
        folders.extend(folder.dirs());
        Some(folder.files())
    })
    .flatten()
    .map(|file| {
        let path = file.path().with_extension("");
        let parts: Vec<_> = path.iter().map(|part| part.to_string_lossy()).collect();
        (parts.join("/"), file.contents_utf8().expect("shaders are UTF-8"))
    })
}
