//! The merge requests of projects, and the notes of kas in them.
//!
//! The endpoints are public: requests have a token of the operator, which needs the scope `api` and the role Reporter in the project, and
//! not the JWT of kas.

mod note_budget;

use std::path::PathBuf;

use futures_util::future::BoxFuture;
use gitops_wire::{MergeRequest, MergeRequestApi, MergeRequestError, MergeRequestNote, NoteKey, NotePlace};
use hmac::{Hmac, KeyInit as _, Mac as _};
use http::{Method, StatusCode};
use secrecy::{ExposeSecret as _, SecretString};
use serde::{
    Deserialize, Serialize,
    de::{DeserializeOwned, IgnoredAny},
};
use sha2::Sha256;
use tokio::time::Instant;

use self::note_budget::NoteBudget;
use super::{
    Credential, Endpoint, GitLabClient, GitLabError,
    client::{ObjectIds, read_token},
};

/// The key of the file with the token.
const TOKEN_KEY: &str = "gitlab.comment_token_file";
/// The merge requests of a list, as text.
const MERGE_REQUESTS: &str = "20";
/// The notes of a page. Strangers can write notes so long that a page of them is too large; each number divides the one before it.
const PAGE_SIZES: [u32; 3] = [50, 5, 1];
/// The most pages of the first size that are read.
const MAX_PAGES: u32 = 20;

/// The merge requests of a GitLab, for which the operator has given kas a token.
#[derive(Debug)]
pub struct GitLabMergeRequests {
    client: GitLabClient,
    token_file: PathBuf,
}

#[derive(Deserialize)]
struct MergeRequestEntry {
    iid: u64,
    /// `None` while GitLab does not know the commits.
    sha: Option<String>,
    /// `None` if the fork was deleted.
    source_project_id: Option<u64>,
}

#[derive(Deserialize)]
struct NoteEntry {
    id: u64,
    body: String,
    author: Option<UserEntry>,
    #[serde(default)]
    system: bool,
}

#[derive(Deserialize)]
struct UserEntry {
    id: u64,
}

/// The notes in which kas looks for its own.
struct NoteSearch<'a> {
    ids: ObjectIds<'a>,
    token: &'a SecretString,
    user: UserEntry,
    marker: &'a str,
    budget: NoteBudget,
}

/// The result of a page.
enum PageSearch {
    Found(MergeRequestNote),
    /// The note may be on a later page.
    Further,
    /// There are no notes from this page on.
    End,
}

#[derive(Serialize)]
struct NoteBody<'a> {
    body: &'a str,
}

impl GitLabMergeRequests {
    /// Returns the merge requests of a GitLab, if the operator has given kas a token for notes in them.
    pub fn new(client: &GitLabClient) -> Option<Self> {
        Some(Self { client: client.clone(), token_file: client.comment_token_file()?.to_owned() })
    }

    async fn token(&self) -> Result<SecretString, GitLabError> {
        read_token(&self.token_file, TOKEN_KEY).await.map_err(GitLabError::unavailable)
    }

    async fn read<T: DeserializeOwned>(
        &self,
        endpoint: Endpoint,
        (project, object): (&str, &str),
        query: &[(&str, &str)],
        token: &SecretString,
    ) -> Result<T, GitLabError> {
        let ids = ObjectIds { project, object, ..ObjectIds::default() };
        self.client.get_at(endpoint, ids, query, Credential::User(token)).await
    }

    async fn find_own(
        &self,
        place: NotePlace,
        marker: &str,
    ) -> Result<Option<MergeRequestNote>, MergeRequestError> {
        let token = self.token().await?;
        let user: UserEntry = self.read(Endpoint::CurrentUser, ("", ""), &[], &token).await?;
        let (project, number) = (place.project.to_string(), place.merge_request.to_string());
        let ids = ObjectIds { project: &project, object: &number, ..ObjectIds::default() };
        let budget = NoteBudget::new(Instant::now());
        let mut search = NoteSearch { ids, token: &token, user, marker, budget };
        for page in 1..=MAX_PAGES {
            match self.search_page(&mut search, page, &PAGE_SIZES).await? {
                PageSearch::Found(note) => return Ok(Some(note)),
                PageSearch::End => return Ok(None),
                PageSearch::Further => {}
            }
        }
        let [size, ..] = PAGE_SIZES;
        Err(MergeRequestError::Refused(format!(
            "not written: the first {MAX_PAGES} pages of {size} notes have no note of kas, and it may be on a later one"
        )))
    }

    /// Looks for the note of kas on a page. A page that is too large is read as several of the next size.
    fn search_page<'a>(
        &'a self,
        search: &'a mut NoteSearch<'_>,
        page: u32,
        sizes: &'a [u32],
    ) -> BoxFuture<'a, Result<PageSearch, MergeRequestError>> {
        Box::pin(async move {
            // By default a note has at most 1 MiB; a larger one is skipped.
            let [size, smaller @ ..] = sizes else { return Ok(PageSearch::Further) };
            if let Some(notes) = self.read_notes(search, page, *size).await? {
                return Ok(search.find(notes));
            }
            let parts = size / smaller.first().unwrap_or(size);
            for part in (page - 1) * parts + 1..=page * parts {
                // Only an empty page of the first size is the end.
                if let found @ PageSearch::Found(_) = self.search_page(search, part, smaller).await? {
                    return Ok(found);
                }
            }
            Ok(PageSearch::Further)
        })
    }

    /// Returns the notes of a page, the oldest ones first, or `None` if it is too large.
    async fn read_notes(
        &self,
        search: &mut NoteSearch<'_>,
        page: u32,
        size: u32,
    ) -> Result<Option<Vec<NoteEntry>>, MergeRequestError> {
        if !search.budget.take_request(Instant::now()) {
            let what = "not written: kas has not found its note within the requests, the bytes and the time of a search. \
                        Delete huge notes of the merge request";
            return Err(MergeRequestError::Refused(what.to_owned()));
        }
        let (page, size) = (page.to_string(), size.to_string());
        let query = [
            ("activity_filter", "only_comments"),
            ("order_by", "created_at"),
            ("sort", "asc"),
            ("per_page", &*size),
            ("page", &*page),
        ];
        let credential = Credential::User(search.token);
        let (notes, bytes) =
            self.client.get_page(Endpoint::MergeRequestNotes, search.ids, &query, credential).await?;
        search.budget.take_bytes(bytes);
        Ok(notes)
    }
}

impl NoteSearch<'_> {
    /// Looks for the note of kas on a page. GitLab leaves out notes that the user may not see, so that one with few is not the last one.
    fn find(&self, notes: Vec<NoteEntry>) -> PageSearch {
        if notes.is_empty() {
            return PageSearch::End;
        }
        let own = notes.into_iter().find(|note| note.is_own(&self.user, self.marker));
        own.map_or(PageSearch::Further, |NoteEntry { id, body, .. }| {
            PageSearch::Found(MergeRequestNote { id, body })
        })
    }
}

impl NoteEntry {
    /// Returns whether the user of the token has written the note as a preview. Other users can write notes that look like one.
    fn is_own(&self, user: &UserEntry, marker: &str) -> bool {
        let is_author = self.author.as_ref().is_some_and(|author| author.id == user.id);
        is_author && !self.system && self.body.starts_with(marker)
    }
}

impl MergeRequestApi for GitLabMergeRequests {
    fn open_merge_requests<'a>(
        &'a self,
        project: u64,
        target: &'a str,
    ) -> BoxFuture<'a, Result<Vec<MergeRequest>, MergeRequestError>> {
        Box::pin(async move {
            let token = self.token().await?;
            let id = project.to_string();
            // Any number of forks leaves the list to the project.
            let query = [
                ("state", "opened"),
                ("source_project_id", &*id),
                ("target_branch", target),
                ("order_by", "updated_at"),
                ("sort", "desc"),
                ("per_page", MERGE_REQUESTS),
            ];
            let found: Vec<MergeRequestEntry> =
                self.read(Endpoint::MergeRequests, (&id, ""), &query, &token).await?;
            let known = found.into_iter().filter_map(|MergeRequestEntry { iid, sha, source_project_id }| {
                let is_of_fork = source_project_id != Some(project);
                Some(MergeRequest { number: iid, commit: sha?, is_of_fork })
            });
            Ok(known.collect())
        })
    }

    fn own_note<'a>(
        &'a self,
        place: NotePlace,
        marker: &'a str,
    ) -> BoxFuture<'a, Result<Option<MergeRequestNote>, MergeRequestError>> {
        Box::pin(self.find_own(place, marker))
    }

    fn note_key(&self) -> BoxFuture<'_, Result<NoteKey, MergeRequestError>> {
        Box::pin(async move {
            let token = self.token().await?;
            let token = token.expose_secret().as_bytes();
            let mac = Hmac::<Sha256>::new_from_slice(token).expect("any length is a key");
            let key = mac.chain_update(b"kas note key v1").finalize().into_bytes();
            Ok(NoteKey::new(key.into()))
        })
    }

    fn write_note<'a>(
        &'a self,
        place: NotePlace,
        id: Option<u64>,
        body: &'a str,
    ) -> BoxFuture<'a, Result<bool, MergeRequestError>> {
        Box::pin(async move {
            let (token, body) = (self.token().await?, NoteBody { body });
            let credential = Credential::User(&token);
            let (project, number) = (place.project.to_string(), place.merge_request.to_string());
            let note = id.map(|id| id.to_string());
            let request = match note {
                None => (Method::POST, Endpoint::CreateMergeRequestNote),
                Some(_) => (Method::PUT, Endpoint::UpdateMergeRequestNote),
            };
            let part = note.as_deref().unwrap_or_default();
            let ids = ObjectIds { project: &project, object: &number, part };
            let written: Result<IgnoredAny, GitLabError> =
                self.client.write_at(request, ids, &body, credential).await;
            match written {
                Ok(_) => Ok(true),
                Err(GitLabError::Status { status: StatusCode::NOT_FOUND, .. }) if id.is_some() => Ok(false),
                Err(error) => Err(error.into()),
            }
        })
    }
}

impl From<GitLabError> for MergeRequestError {
    fn from(error: GitLabError) -> Self {
        let message = error.to_string();
        match error {
            GitLabError::Status { .. } => Self::Refused(message),
            GitLabError::Unavailable { retry_after, .. } => Self::Unavailable { message, retry_after },
        }
    }
}
