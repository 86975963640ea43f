//! The token loader: memory-mapped files of token ids, plain (nanoGPT) or with the header of llm.c.

use std::path::Path;

use super::config::{Paths, TokenType};
use super::files::{self, DATASET_KEYS, TOKEN_FILES};
use super::llm_c::{HEADER_BYTES, Header};
use super::notes::plural;
use super::source::LoadedSource;
use super::stream::{Chunk, MappedTokens, TokenStream};
use super::token_encoding::TokenEncoding;
use crate::error::{Error, Result};

/// The sources of a token loader. In a folder, the `*.bin` files are read. `dtype` is the width of a token in files
/// without a header.
pub(crate) fn load(files: &Paths, dtype: TokenType) -> Result<Vec<LoadedSource>> {
    LoadedSource::of_files(files, |paths| load_one(paths, dtype))
}

/// All files of `paths` as one stream, and a sentence on the files that were mapped.
fn load_one(paths: &[String], dtype: TokenType) -> Result<(TokenStream, String)> {
    let wanted = |path: &Path| files::has_extension(path, &TOKEN_FILES);
    let files = files::expand(paths, wanted, &format!("correct {DATASET_KEYS}"))?;
    if files.is_empty() {
        let message = format!("no *.{} token file found; name one with {DATASET_KEYS}", TOKEN_FILES[0]);
        return Err(Error::file(paths.join(", "), message));
    }
    let mut stream = TokenStream::default();
    for file in &files {
        stream.push(map(&file.path, dtype)?);
    }
    let sentence = format!("{} tokens mapped from {}", stream.len(), plural(files.len() as u64, "file"));
    Ok((stream, sentence))
}

fn map(path: &Path, dtype: TokenType) -> Result<Chunk> {
    let map = files::map(path)?;
    if map.is_empty() {
        return Err(Error::file(path, "is empty; expected token ids of 16 or 32 bits"));
    }
    let (encoding, offset) = layout(&map, dtype).map_err(|message| Error::file(path, message))?;
    let len = (map.len() - offset) / encoding.bytes();
    let tokens = MappedTokens::new(map, offset, len, encoding);
    // The number of tokens follows from the length of the file, so this cannot happen.
    tokens.map(Chunk::Mapped).ok_or_else(|| Error::file(path, "is shorter than its tokens"))
}

/// How each token is stored, and the length of the header in bytes. The error says what is wrong with the file.
fn layout(bytes: &[u8], dtype: TokenType) -> std::result::Result<(TokenEncoding, usize), String> {
    let asked = match dtype {
        TokenType::Auto => None,
        TokenType::Uint16 => Some(TokenEncoding::U16),
        TokenType::Uint32 => Some(TokenEncoding::U32),
    };
    let bits = |encoding: TokenEncoding| 8 * encoding.bytes();
    let Some(Header { encoding, tokens }) = Header::read(bytes) else {
        let encoding = asked.unwrap_or(TokenEncoding::U16);
        return match bytes.len() % encoding.bytes() {
            0 => Ok((encoding, 0)),
            _ => Err(format!(
                "{} bytes are not a whole number of {}-bit tokens; check `dtype`",
                bytes.len(),
                bits(encoding)
            )),
        };
    };
    if asked.is_some_and(|asked| asked != encoding) {
        return Err(format!("its header says {}-bit tokens; write `dtype: auto`", bits(encoding)));
    }
    let body = bytes.len() - HEADER_BYTES;
    let present = body / encoding.bytes();
    if present != tokens as usize || !body.is_multiple_of(encoding.bytes()) {
        return Err(format!(
            "its header promises {tokens} tokens, {present} are there; fetch the file again"
        ));
    }
    Ok((encoding, HEADER_BYTES))
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
        check("b", None, &[1, 2, 3], auto, "3 bytes are not a whole number of 16-bit tokens; check `dtype`");
        let gpt2 = |tokens| Some([20_240_520, 1, tokens]);
        check("c", gpt2(1), &[1, 0], wide, "its header says 16-bit tokens; write `dtype: auto`");
        let message = "its header promises 5 tokens, 1 are there; fetch the file again";
        check("d", gpt2(5), &[1, 0], auto, message);
    }
}
