//! The retry rule: pure, so that it can be read and tested alone.

/// How many times one request is tried at most.
const MAX_TRIES: u32 = 3;

/// One caller's request on its way to some tunnel.
#[derive(Clone, Debug)]
pub struct Attempt {
    tries: u32,
    safe: bool,
}

/// How far a failed try got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The cluster has certainly not acted on it: it was not sent, or was refused unseen.
    NotProcessed,
    /// The cluster may have acted on it.
    Unknown,
}

impl Attempt {
    /// `safe`: the method is safe (RFC 9110 section 9.2.1), so that doing it twice does no harm.
    pub fn new(safe: bool) -> Self {
        Self { tries: 1, safe }
    }

    /// Whether to try again; counts the try if so. `whole` is false once a byte of the request's body is gone.
    pub fn again(&mut self, progress: Progress, whole: bool) -> bool {
        let harmless = progress == Progress::NotProcessed || self.safe;
        let again = harmless && whole && self.tries < MAX_TRIES;
        self.tries += u32::from(again);
        again
    }

    /// How many tries were made beyond the first.
    pub fn retries(&self) -> u32 {
        self.tries - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_cannot_do_harm_is_tried_again() {
        for (safe, progress, whole, expected) in [
            (true, Progress::NotProcessed, true, true),
            (true, Progress::Unknown, true, true),
            (true, Progress::Unknown, false, false),
            (false, Progress::NotProcessed, true, true),
            (false, Progress::NotProcessed, false, false),
            (false, Progress::Unknown, true, false),
            (false, Progress::Unknown, false, false),
        ] {
            assert_eq!(
                Attempt::new(safe).again(progress, whole),
                expected,
                "safe {safe}, {progress:?}, whole {whole}"
            );
        }
    }

    #[test]
    fn tries_are_bounded_and_counted() {
        let mut attempt = Attempt::new(true);
        assert!(attempt.again(Progress::NotProcessed, true));
        assert!(attempt.again(Progress::NotProcessed, true));
        assert!(!attempt.again(Progress::NotProcessed, true));
        assert_eq!(attempt.retries(), 2);
    }
}
