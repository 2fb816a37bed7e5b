//! The data of a commit that agentk receives: the frames of a sync in parts of any size, and the manifests in its files.
//!
//! * The first byte is the size of the parts. The frames do not depend on it.
//! * A body that is complete stays so, and each of its beginnings is not.
//! * Any bytes as a manifest give objects with a kind and a name, or errors.

use gitops_engine::{SourceFile, order, parse};
use proto::gitops::{FrameError, FrameLimits, SyncDecoder, SyncFrame};

const LIMITS: FrameLimits = FrameLimits { files: 4, bytes: 1 << 16 };

/// Checks one input.
pub fn run(data: &[u8]) {
    let Some((size, data)) = data.split_first() else { return };
    let whole = frames(data, data.len().max(1));
    assert_eq!(frames(data, usize::from(*size).max(1)), whole);
    if whole.is_ok() {
        assert!(frames(&data[..data.len() - 1], data.len()).is_err());
    }
    let file = SourceFile { path: "a.yaml".to_owned(), content: data.to_vec().into() };
    match parse::parse(&[file]) {
        Ok(objects) => {
            assert!(objects.iter().all(|object| !object.id.kind.is_empty() && !object.id.name.is_empty()));
            if let Ok(stages) = order::stages(&objects) {
                assert_eq!(stages.iter().map(|stage| stage.objects.len()).sum::<usize>(), objects.len());
            }
        }
        Err(errors) => assert!(!errors.is_empty()),
    }
}

fn frames(data: &[u8], size: usize) -> Result<Vec<SyncFrame>, FrameError> {
    let mut decoder = SyncDecoder::new(LIMITS);
    let mut frames = Vec::new();
    for part in data.chunks(size) {
        decoder.push(part);
        while let Some(frame) = decoder.next_frame()? {
            frames.push(frame);
        }
    }
    decoder.ended().map(|()| frames)
}
