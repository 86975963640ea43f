//! Other people's files, translated to this program's own keys before any section is read.
//!
//! A translator moves values to where they are read, and turns keys that say the same in another way into our own. Each value keeps its
//! origin: messages name the file, the line and the key, or the flag, under which it was written.

pub(super) mod mindformers;
