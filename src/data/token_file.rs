//! Memory-mapped files of token ids: plain (nanoGPT) or with the header of llm.c.

use std::path::Path;

use super::config::{TokenType, TokensConfig};
use super::files;
use super::source::{Loaded, groups};
use super::stream::{MappedTokens, Part, TokenEncoding, TokenStream};
use super::text::plural;
use crate::error::{Error, Result};

/// The header of llm.c: 256 little-endian i32; magic, version, number of tokens, then zeros.
pub(super) const HEADER_BYTES: usize = 256 * 4;
/// GPT-2 tokens, 16 bits wide (`dev/data/tinyshakespeare.py` and friends).
pub(super) const MAGIC_U16: ([u32; 2], usize) = ([20_240_520, 1], 2);
/// Llama 3 tokens, 32 bits wide.
pub(super) const MAGIC_U32: ([u32; 2], usize) = ([20_240_801, 7], 4);

/// The sources of a token loader.
pub(super) fn load(config: &TokensConfig) -> Result<Vec<Loaded>> {
    groups(&config.paths, &config.weights)
        .map(|(paths, weight)| {
            let (stream, sentence) = load_one(paths, config.dtype)?;
            Ok(Loaded { sentence, weight, ..Loaded::whole(stream, paths.join(", ")) })
        })
        .collect()
}

/// One stream of every file that `paths` name, and a sentence on what it took.
fn load_one(paths: &[String], dtype: TokenType) -> Result<(TokenStream, String)> {
    let wanted = |path: &Path| files::has_extension(path, &["bin".to_string()]);
    let list = files::expand(paths, wanted, files::CORRECT_DATASET)?;
    let mut stream = TokenStream::default();
    let count = list.named.len() + list.found.len();
    for path in list.named.iter().chain(&list.found) {
        stream.push(map(path, dtype)?);
    }
    if count == 0 {
        let message = "no *.bin token file found; name one with `dataset_dir` or `dataset_files`";
        return Err(Error::file(paths.join(", "), message));
    }
    let sentence = format!("{} tokens mapped from {}", stream.len(), plural(count, "file"));
    Ok((stream, sentence))
}

fn map(path: &Path, dtype: TokenType) -> Result<Part> {
    let map = files::map(path)?;
    if map.is_empty() {
        return Err(Error::file(path, "is empty; expected token ids of 16 or 32 bits"));
    }
    let (encoding, offset) = layout(&map, dtype).map_err(|message| Error::file(path, message))?;
    let len = (map.len() - offset) / encoding.bytes();
    let tokens = MappedTokens::new(map, offset, len, encoding);
    // The length is that of the file, so nothing is missing.
    tokens.map(Part::Mapped).ok_or_else(|| Error::file(path, "is shorter than its tokens"))
}

/// How a token is stored, and the length of the header in bytes.
fn layout(bytes: &[u8], dtype: TokenType) -> std::result::Result<(TokenEncoding, usize), String> {
    let encoding = |width| if width == 2 { TokenEncoding::U16 } else { TokenEncoding::U32 };
    let asked = match dtype {
        TokenType::Auto => None,
        TokenType::Uint16 => Some(2),
        TokenType::Uint32 => Some(4),
    };
    let Some((width, tokens)) = header(bytes) else {
        let width = asked.unwrap_or(2);
        return match bytes.len() % width {
            0 => Ok((encoding(width), 0)),
            _ => Err(format!(
                "{} bytes are no whole number of {}-bit tokens; check `dtype`",
                bytes.len(),
                8 * width
            )),
        };
    };
    if asked.is_some_and(|asked| asked != width) {
        return Err(format!("its header says {}-bit tokens; write `dtype: auto`", 8 * width));
    }
    let present = (bytes.len() - HEADER_BYTES) / width;
    if present != tokens || !(bytes.len() - HEADER_BYTES).is_multiple_of(width) {
        return Err(format!(
            "its header promises {tokens} tokens, {present} are there; fetch the file again"
        ));
    }
    Ok((encoding(width), HEADER_BYTES))
}

/// Width and number of tokens that a header of llm.c states.
fn header(bytes: &[u8]) -> Option<(usize, usize)> {
    let (words, _) = bytes.get(..HEADER_BYTES)?.as_chunks::<4>();
    let word = |index: usize| u32::from_le_bytes(words[index]);
    let (_, width) = [MAGIC_U16, MAGIC_U32].into_iter().find(|(magic, _)| *magic == [word(0), word(1)])?;
    Some((width, word(2) as usize))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    struct Folder(tempfile::TempDir);

    impl Folder {
        fn write(&self, name: &str, header: Option<[u32; 3]>, body: &[u8]) -> PathBuf {
            let mut bytes = Vec::new();
            if let Some(header) = header {
                bytes.extend(header.iter().flat_map(|word| word.to_le_bytes()));
                bytes.resize(HEADER_BYTES, 0);
            }
            bytes.extend_from_slice(body);
            let path = self.0.path().join(name);
            std::fs::write(&path, bytes).unwrap();
            path
        }
    }

    fn tokens(path: &Path, dtype: TokenType) -> std::result::Result<Vec<u32>, String> {
        let (stream, _) =
            load_one(&[path.display().to_string()], dtype).map_err(|error| error.to_string())?;
        let mut out = vec![0; stream.len() as usize];
        stream.read(0..stream.len(), &mut out);
        Ok(out)
    }

    #[test]
    fn reads_every_layout() {
        let folder = Folder(tempfile::tempdir().unwrap());
        let plain = folder.write("plain.bin", None, &[1, 0, 0xff, 0xff, 3, 0, 4, 0]);
        assert_eq!(tokens(&plain, TokenType::Auto).unwrap(), [1, 65535, 3, 4]);
        assert_eq!(tokens(&plain, TokenType::Uint32).unwrap(), [0xffff_0001, 0x0004_0003]);
        let short = folder.write("gpt2.bin", Some([20_240_520, 1, 2]), &[7, 0, 8, 1]);
        assert_eq!(tokens(&short, TokenType::Auto).unwrap(), [7, 264]);
        let long = folder.write("llama.bin", Some([20_240_801, 7, 1]), &[1, 2, 3, 0]);
        assert_eq!(tokens(&long, TokenType::Uint32).unwrap(), [0x0003_0201]);
        // A folder reads its *.bin files in order as one stream.
        assert_eq!(tokens(folder.0.path(), TokenType::Auto).unwrap(), [7, 264, 0x0003_0201, 1, 65535, 3, 4]);
    }

    #[test]
    fn refuses_what_is_broken() {
        let folder = Folder(tempfile::tempdir().unwrap());
        let check = |name: &str, header, body: &[u8], dtype, message: &str| {
            let path = folder.write(name, header, body);
            assert_eq!(tokens(&path, dtype).unwrap_err(), format!("{}: {message}", path.display()));
        };
        let (auto, wide) = (TokenType::Auto, TokenType::Uint32);
        check("a", None, &[], auto, "is empty; expected token ids of 16 or 32 bits");
        check("b", None, &[1, 2, 3], auto, "3 bytes are no whole number of 16-bit tokens; check `dtype`");
        let gpt2 = |tokens| Some([20_240_520, 1, tokens]);
        check("c", gpt2(1), &[1, 0], wide, "its header says 16-bit tokens; write `dtype: auto`");
        let message = "its header promises 5 tokens, 1 are there; fetch the file again";
        check("d", gpt2(5), &[1, 0], auto, message);
    }
}
