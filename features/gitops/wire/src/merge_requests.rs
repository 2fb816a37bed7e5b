//! The merge requests of a project, and the notes that kas writes in them.

use std::{fmt, time::Duration};

use futures_util::future::BoxFuture;

/// A server that has merge requests.
pub trait MergeRequestApi: fmt::Debug + Send + Sync {
    /// Returns the open merge requests of a project into one of its branches, but not those of forks. The one that was changed last is the
    /// first, and a long list is cut.
    ///
    /// # Errors
    ///
    /// The server refuses the request, or does not respond.
    fn open_merge_requests<'a>(
        &'a self,
        project: u64,
        target: &'a str,
    ) -> BoxFuture<'a, Result<Vec<MergeRequest>, MergeRequestError>>;

    /// Returns the first note that begins with a marker, and that this kas has written. Notes of others are left out.
    ///
    /// # Errors
    ///
    /// As [`Self::open_merge_requests`], and the merge request has more notes than kas reads.
    fn own_note<'a>(
        &'a self,
        place: NotePlace,
        marker: &'a str,
    ) -> BoxFuture<'a, Result<Option<MergeRequestNote>, MergeRequestError>>;

    /// Returns a key for MACs of texts in notes. Only programs with the same credential have it.
    ///
    /// # Errors
    ///
    /// The credential cannot be read.
    fn note_key(&self) -> BoxFuture<'_, Result<NoteKey, MergeRequestError>>;

    /// Replaces the text of the note with this id, or writes a new note. A new one may be written although there is an error. Returns
    /// false if there is no note with this id any more.
    ///
    /// # Errors
    ///
    /// As [`Self::open_merge_requests`].
    fn write_note<'a>(
        &'a self,
        place: NotePlace,
        id: Option<u64>,
        body: &'a str,
    ) -> BoxFuture<'a, Result<bool, MergeRequestError>>;
}

/// An open merge request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MergeRequest {
    /// The number in its project.
    pub number: u64,
    /// The id of the head of the source branch. It is not trusted.
    pub commit: String,
    /// The source branch is in another project.
    pub is_of_fork: bool,
}

/// The place of a note.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NotePlace {
    /// The id of the project.
    pub project: u64,
    /// The number of the merge request.
    pub merge_request: u64,
}

/// A note in a merge request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MergeRequestNote {
    /// The id.
    pub id: u64,
    /// The text.
    pub body: String,
}

/// A secret key for MACs of texts in notes.
#[derive(Clone)]
pub struct NoteKey([u8; 32]);

impl NoteKey {
    /// Returns a key with these bytes.
    pub fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Returns the bytes.
    pub fn expose(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Debug for NoteKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NoteKey")
    }
}

/// The error of a request about merge requests. Each is a sentence.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MergeRequestError {
    /// The server refuses it. Another attempt gives the same until somebody changes something.
    #[error("{0}")]
    Refused(String),
    /// The server gave no answer that can be used.
    #[error("{message}")]
    Unavailable {
        /// The cause.
        message: String,
        /// The time after which another attempt is useful.
        retry_after: Duration,
    },
}
