//! The body of a sync: a head, files, and an end that proves that nothing is missing.
//!
//! ```text
//!   {"head":{"project":"group/app",…}}⏎
//!   {"file":{"path":"app.yaml","bytes":17}}⏎
//!   kind: ConfigMap …                                      17 bytes
//!   {"end":{"files":1,"digest":"sha256 of all bytes before this line"}}⏎
//! ```

use bytes::{Buf as _, Bytes, BytesMut};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::SyncHead;

/// The longest line, in bytes. A head has the settings of a project.
const MAX_LINE: usize = 1 << 20;

/// Writes the body of a sync.
#[derive(Debug, Default)]
pub struct SyncEncoder {
    digest: Sha256,
    files: u64,
}

/// Reads the body of a sync from pieces of any size.
#[derive(Debug)]
pub struct SyncDecoder {
    limits: FrameLimits,
    buffer: BytesMut,
    digest: Sha256,
    files: u64,
    total: u64,
    state: FrameState,
}

/// The limits of a sync.
#[derive(Clone, Copy, Debug)]
pub struct FrameLimits {
    /// The most files.
    pub files: u64,
    /// The most bytes of all files together.
    pub bytes: u64,
}

/// A part of a sync.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SyncFrame {
    /// The first frame.
    Head(Box<SyncHead>),
    /// A file.
    File {
        /// The path in the repository.
        path: String,
        /// The content.
        content: Bytes,
    },
    /// The last frame. Only now may the files be used.
    End,
}

/// A body that is not a complete sync. Nothing of it may be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// A line is no frame, or not the expected one.
    #[error("the sync has an invalid frame: {0}")]
    Invalid(String),
    /// The end does not belong to the frames before it.
    #[error("the sync is damaged: {0}")]
    Damaged(&'static str),
    /// A limit of agentk is exceeded.
    #[error("the sync is larger than agentk accepts: over {0}")]
    TooLarge(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum FrameState {
    Head,
    Line,
    Content { path: String, bytes: usize },
    Ended,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    Head(Box<SyncHead>),
    File { path: String, bytes: usize },
    End { files: u64, digest: String },
}

impl SyncEncoder {
    /// Returns the bytes of the head.
    pub fn head(&mut self, head: SyncHead) -> Bytes {
        self.line(&Line::Head(Box::new(head)))
    }

    /// Returns the bytes in front of the content of a file, and counts the content.
    pub fn file(&mut self, path: &str, content: &[u8]) -> Bytes {
        let line = self.line(&Line::File { path: path.to_owned(), bytes: content.len() });
        self.digest.update(content);
        self.files += 1;
        line
    }

    /// Returns the bytes of the end.
    pub fn end(mut self) -> Bytes {
        let (files, digest) = (self.files, hex(&self.digest.clone().finalize()));
        self.line(&Line::End { files, digest })
    }

    fn line(&mut self, line: &Line) -> Bytes {
        let mut bytes = serde_json::to_vec(line).expect("frames have keys that are text");
        bytes.push(b'\n');
        self.digest.update(&bytes);
        bytes.into()
    }
}

impl SyncDecoder {
    /// Returns a decoder that refuses larger syncs.
    pub fn new(limits: FrameLimits) -> Self {
        let (buffer, digest) = (BytesMut::new(), Sha256::default());
        Self { limits, buffer, digest, files: 0, total: 0, state: FrameState::Head }
    }

    /// Adds bytes that have arrived.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// Returns the next frame, or `None` if its last byte has not arrived.
    ///
    /// # Errors
    ///
    /// The body is not a sync.
    pub fn next_frame(&mut self) -> Result<Option<SyncFrame>, FrameError> {
        if let FrameState::Content { bytes, .. } = self.state {
            if self.buffer.len() < bytes {
                return Ok(None);
            }
            let FrameState::Content { path, .. } = std::mem::replace(&mut self.state, FrameState::Line)
            else {
                unreachable!("it was matched above")
            };
            // A part of the buffer would keep the whole buffer, for as long as the file is kept.
            let content = Bytes::copy_from_slice(&self.buffer[..bytes]);
            self.buffer.advance(bytes);
            self.digest.update(&content);
            return Ok(Some(SyncFrame::File { path, content }));
        }
        if self.state == FrameState::Ended {
            return if self.buffer.is_empty() {
                Ok(None)
            } else {
                Err(FrameError::Damaged("bytes follow its end"))
            };
        }
        let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') else {
            return if self.buffer.len() > MAX_LINE {
                Err(FrameError::TooLarge(format!("{MAX_LINE} bytes in a line")))
            } else {
                Ok(None)
            };
        };
        let line = self.buffer.split_to(end);
        self.buffer.advance(1);
        let parsed = serde_json::from_slice(&line).map_err(|error| FrameError::Invalid(error.to_string()))?;
        if let Line::End { files, digest } = parsed {
            return self.finish(files, &digest).map(Some);
        }
        self.digest.update(&line);
        self.digest.update(b"\n");
        match (parsed, &self.state) {
            (Line::Head(head), FrameState::Head) => {
                self.state = FrameState::Line;
                Ok(Some(SyncFrame::Head(head)))
            }
            (Line::File { path, bytes }, FrameState::Line) => {
                self.count(bytes)?;
                self.state = FrameState::Content { path, bytes };
                self.next_frame()
            }
            _ => Err(FrameError::Invalid("a head must come first, and only once".to_owned())),
        }
    }

    /// Checks that the body has ended after its last frame.
    ///
    /// # Errors
    ///
    /// The body was cut.
    pub fn ended(&self) -> Result<(), FrameError> {
        match self.state {
            FrameState::Ended => Ok(()),
            _ => Err(FrameError::Damaged("it was cut before its end")),
        }
    }

    fn count(&mut self, bytes: usize) -> Result<(), FrameError> {
        self.files += 1;
        self.total = self.total.saturating_add(bytes as u64);
        let FrameLimits { files, bytes } = self.limits;
        if self.files > files {
            return Err(FrameError::TooLarge(format!("{files} files")));
        }
        if self.total > bytes {
            return Err(FrameError::TooLarge(format!("{bytes} bytes")));
        }
        Ok(())
    }

    fn finish(&mut self, files: u64, digest: &str) -> Result<SyncFrame, FrameError> {
        if self.state != FrameState::Line {
            return Err(FrameError::Damaged("it has no head"));
        }
        if files != self.files || digest != hex(&std::mem::take(&mut self.digest).finalize()) {
            return Err(FrameError::Damaged("its end has another number of files or another digest"));
        }
        self.state = FrameState::Ended;
        Ok(SyncFrame::End)
    }
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;

    bytes.iter().fold(String::with_capacity(64), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a string takes any text");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gitops::CommitInfo;

    const LIMITS: FrameLimits = FrameLimits { files: 2, bytes: 20 };

    fn head() -> SyncHead {
        let commit = CommitInfo { id: "c".repeat(40), ..CommitInfo::default() };
        SyncHead {
            project: "group/app".to_owned(),
            settings: crate::agent_configuration::gitops::ManifestProject::default(),
            gitlab_project: Some(3),
            reference: "branch main".to_owned(),
            commit,
        }
    }

    fn encode(files: &[(&str, &str)]) -> Vec<u8> {
        let mut encoder = SyncEncoder::default();
        let mut body = encoder.head(head()).to_vec();
        for (path, content) in files {
            body.extend_from_slice(&encoder.file(path, content.as_bytes()));
            body.extend_from_slice(content.as_bytes());
        }
        body.extend_from_slice(&encoder.end());
        body
    }

    /// Decodes a body that arrives in pieces of `size` bytes. Returns the paths and contents.
    fn decode(body: &[u8], size: usize) -> Result<Vec<(String, String)>, FrameError> {
        let mut decoder = SyncDecoder::new(LIMITS);
        let mut files = Vec::new();
        for piece in body.chunks(size) {
            decoder.push(piece);
            while let Some(frame) = decoder.next_frame()? {
                if let SyncFrame::File { path, content } = frame {
                    files.push((path, String::from_utf8(content.to_vec()).unwrap()));
                }
            }
        }
        decoder.ended().map(|()| files)
    }

    #[test]
    fn body_is_read_from_pieces_of_any_size() {
        let body = encode(&[("a.yaml", "kind: A\n"), ("b.yaml", "")]);
        let expected =
            vec![("a.yaml".to_owned(), "kind: A\n".to_owned()), ("b.yaml".to_owned(), String::new())];
        for size in [1, 7, 64, body.len()] {
            assert_eq!(decode(&body, size).unwrap(), expected, "{size}");
        }
        assert_eq!(decode(&encode(&[]), 3).unwrap(), []);
    }

    /// Test 52 of the attack list: nothing of a body that was cut may be used.
    #[test]
    fn body_that_is_cut_anywhere_is_refused() {
        let body = encode(&[("a.yaml", "kind: A\n"), ("b.yaml", "x")]);
        for length in 0..body.len() {
            assert!(decode(&body[..length], 1000).is_err(), "{length} of {} bytes", body.len());
        }
    }

    #[test]
    fn body_that_was_changed_is_refused() {
        let body = encode(&[("a.yaml", "kind: A\n"), ("b.yaml", "x")]);
        for index in 0..body.len() {
            let mut changed = body.clone();
            changed[index] ^= 1;
            assert!(decode(&changed, 1000).is_err(), "byte {index}");
        }
        let mut longer = body;
        longer.push(b'x');
        assert!(decode(&longer, 1000).is_err());
    }

    /// Test 51 of the attack list: a limit holds at N and fails at N+1.
    #[test]
    fn limits_are_exact() {
        let twenty = "x".repeat(20);
        assert!(decode(&encode(&[("a", &twenty), ("b", "")]), 9).is_ok());
        let error = |files: &[(&str, &str)]| decode(&encode(files), 9).unwrap_err().to_string();
        assert_eq!(
            error(&[("a", &twenty), ("b", "x")]),
            "the sync is larger than agentk accepts: over 20 bytes"
        );
        assert_eq!(
            error(&[("a", ""), ("b", ""), ("c", "")]),
            "the sync is larger than agentk accepts: over 2 files"
        );
        let mut decoder = SyncDecoder::new(LIMITS);
        decoder.push(&vec![b'x'; MAX_LINE + 1]);
        assert!(matches!(decoder.next_frame(), Err(FrameError::TooLarge(_))));
    }
}
