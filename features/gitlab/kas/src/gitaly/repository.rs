//! A repository of a Gitaly server.

use std::{sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use git::{
    AGENTS_DIRECTORY, CONFIGURATION_FILE, Commit, CommitId, FileSelection, MAX_LISTED_AGENTS, Reference,
    Repository, RepositoryError, RepositoryFile, SelectedFiles,
};
use prost::Message;
use proto::{AgentId, AgentName};
use tokio::time::timeout;
use tonic::{Code, Status, Streaming};

use super::{
    GitalyClient, GitalyError, GitalyServer, ReferenceScanner, ResolvedReference,
    messages::{
        GetTreeEntriesRequest, GetTreeEntriesResponse, InfoRefsRequest, InfoRefsResponse, RepositoryLocation,
        TreeEntry, TreeEntryRequest, TreeEntryResponse,
    },
};

const INFO_REFS: &str = "/gitaly.SmartHTTPService/InfoRefsUploadPack";
const GET_TREE_ENTRIES: &str = "/gitaly.CommitService/GetTreeEntries";
const TREE_ENTRY: &str = "/gitaly.CommitService/TreeEntry";

/// The time for all responses of a call.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);

/// The most bytes of an advertisement of references, of which kas keeps one: two million references.
const MAX_ADVERTISEMENT: usize = 128 << 20;

/// The most entries of a directory that are examined.
const MAX_ENTRIES: usize = 100_000;

/// `TreeEntryResponse.ObjectType.BLOB`: a file or a symbolic link.
const BLOB: i32 = 1;
/// `TreeEntryResponse.ObjectType.TREE`.
const TREE: i32 = 2;
/// `TreeEntry.EntryType.BLOB`.
const BLOB_ENTRY: i32 = 0;
/// `TreeEntry.EntryType.COMMIT`: a submodule.
const COMMIT_ENTRY: i32 = 3;
/// The bits of a mode that are the type of the file.
const MODE_TYPE: i32 = 0o170_000;
/// The type of a regular file.
const MODE_FILE: i32 = 0o100_000;

/// A repository of a Gitaly server.
#[derive(Clone, Debug)]
pub struct GitalyRepository {
    client: GitalyClient,
    server: GitalyServer,
    location: RepositoryLocation,
    reference: Reference,
    agent: Option<AgentId>,
}

impl GitalyRepository {
    /// Creates a repository of which this version is followed. Calls for an agent count against its own limit.
    pub fn new(
        client: GitalyClient,
        server: GitalyServer,
        location: RepositoryLocation,
        reference: Reference,
        agent: Option<AgentId>,
    ) -> Self {
        Self { client, server, location, reference, agent }
    }

    async fn call<Q, R>(&self, method: &'static str, message: Q) -> Result<Responses<R>, GitalyError>
    where
        Q: Message + 'static,
        R: Message + Default + 'static,
    {
        self.client.call(&self.server, self.agent, method, message).await.map(Responses)
    }

    async fn resolve(&self) -> Result<Option<Commit>, RepositoryError> {
        if let Reference::Commit(id) = &self.reference {
            return Ok(Some(Commit { id: id.clone(), branch: id.to_string() }));
        }
        let request = InfoRefsRequest { repository: Some(self.location.clone()) };
        let mut responses: Responses<InfoRefsResponse> = self.call(INFO_REFS, request).await?;
        let (mut scanner, mut bytes) = (ReferenceScanner::new(&self.reference), 0);
        let invalid = |error| unavailable(format!("Gitaly sent invalid references: {error}"));
        while let Some(response) = responses.next().await? {
            bytes += response.data.len();
            if bytes > MAX_ADVERTISEMENT {
                return Err(unavailable(format!("the references have more than {MAX_ADVERTISEMENT} bytes")));
            }
            scanner.push(&response.data).map_err(invalid)?;
        }
        match scanner.finish().map_err(invalid)? {
            ResolvedReference::Commit(commit) => Ok(Some(commit)),
            ResolvedReference::Empty => Ok(None),
            ResolvedReference::Missing => Err(RepositoryError::ReferenceNotFound(self.reference.clone())),
        }
    }

    async fn read_file(
        &self,
        commit: &CommitId,
        path: &str,
        max_bytes: usize,
    ) -> Result<Option<Vec<u8>>, RepositoryError> {
        let too_large = || RepositoryError::TooLarge { path: path.to_owned(), max_bytes };
        let request = TreeEntryRequest {
            repository: Some(self.location.clone()),
            revision: commit.as_str().into(),
            path: path.into(),
            // 0 is no limit.
            max_size: i64::try_from(max_bytes.max(1)).unwrap_or(i64::MAX),
        };
        let read = async {
            let mut responses: Responses<TreeEntryResponse> = self.call(TREE_ENTRY, request).await?;
            let first = responses.next().await?;
            Ok::<_, GitalyError>(first.map(|first| (first, responses)))
        };
        let (first, mut responses) = match read.await {
            Ok(Some(read)) => read,
            Ok(None) => return Ok(None),
            Err(GitalyError::Status(status)) if status.code() == Code::NotFound => return Ok(None),
            Err(GitalyError::Status(status)) if status.code() == Code::FailedPrecondition => {
                return Err(too_large());
            }
            Err(error) => return Err(error.into()),
        };
        match kind(&first) {
            EntryKind::Missing => return Ok(None),
            EntryKind::File => {}
            EntryKind::Other(kind) => {
                return Err(RepositoryError::NotAFile { path: path.to_owned(), kind });
            }
        }
        let mut content = Vec::new();
        let mut response = Some(first);
        while let Some(TreeEntryResponse { data, .. }) = response {
            if content.len() + data.len() > max_bytes {
                return Err(too_large());
            }
            content.extend_from_slice(&data);
            response = responses.next().await?;
        }
        Ok(Some(content))
    }

    /// Lists the repository, and then reads one file after the other: each has its own call.
    async fn read_files(
        &self,
        commit: &CommitId,
        selection: &FileSelection,
    ) -> Result<Vec<RepositoryFile>, RepositoryError> {
        let mut paths = self.list_files(commit, selection).await?;
        paths.sort();
        let (mut files, mut bytes) = (Vec::with_capacity(paths.len()), 0);
        for path in paths {
            let read = within_time(self.read_file(commit, &path, selection.limits.file_bytes)).await?;
            let content = read.ok_or_else(|| unavailable(format!("Gitaly has no file {path} any more")))?;
            bytes += content.len();
            if bytes > selection.limits.bytes {
                return Err(selection.too_many_bytes());
            }
            files.push(RepositoryFile { path, content });
        }
        Ok(files)
    }

    async fn list_files(
        &self,
        commit: &CommitId,
        selection: &FileSelection,
    ) -> Result<Vec<String>, RepositoryError> {
        let request = GetTreeEntriesRequest {
            repository: Some(self.location.clone()),
            revision: commit.as_str().into(),
            path: b".".into(),
            recursive: true,
            skip_flat_paths: true,
        };
        let mut responses: Responses<GetTreeEntriesResponse> = self.call(GET_TREE_ENTRIES, request).await?;
        let (mut paths, mut examined) = (Vec::new(), 0);
        while let Some(GetTreeEntriesResponse { entries }) = responses.next().await? {
            examined += entries.len();
            if examined > MAX_ENTRIES {
                return Err(unavailable(format!(
                    "the repository has over {MAX_ENTRIES} files and directories"
                )));
            }
            for entry in entries {
                let Ok(path) = String::from_utf8(entry.path) else { continue };
                let reached =
                    path.rsplit_once('/').is_none_or(|(directory, _)| enters_all(selection, directory));
                match (entry.kind, entry.mode & MODE_TYPE) {
                    (BLOB_ENTRY, MODE_FILE) if reached && selection.selects(&path) => paths.push(path),
                    (BLOB_ENTRY, _) if reached && selection.selects(&path) => {
                        return Err(RepositoryError::NotAFile { path, kind: "a symbolic link" });
                    }
                    (COMMIT_ENTRY, _) if reached && selection.enters(&path) => {
                        return Err(RepositoryError::NotAFile { path, kind: "a submodule" });
                    }
                    _ => {}
                }
                if paths.len() > selection.limits.files {
                    return Err(selection.too_many_files());
                }
            }
        }
        Ok(paths)
    }

    async fn list_agents(&self, commit: &CommitId) -> Result<Vec<AgentName>, RepositoryError> {
        let request = GetTreeEntriesRequest {
            repository: Some(self.location.clone()),
            revision: commit.as_str().into(),
            path: AGENTS_DIRECTORY.into(),
            recursive: true,
            skip_flat_paths: true,
        };
        let (mut names, mut examined) = (Vec::new(), 0);
        let read = async {
            let mut responses: Responses<GetTreeEntriesResponse> =
                self.call(GET_TREE_ENTRIES, request).await?;
            while let Some(GetTreeEntriesResponse { entries }) = responses.next().await? {
                names.extend(entries.iter().filter_map(configured_agent));
                examined += entries.len();
                if examined >= MAX_ENTRIES {
                    break;
                }
            }
            Ok::<_, GitalyError>(())
        };
        match read.await {
            Ok(()) => {}
            // The repository has no such directory. Versions of Gitaly use either code.
            Err(GitalyError::Status(status))
                if matches!(status.code(), Code::NotFound | Code::InvalidArgument) => {}
            Err(error) => return Err(error.into()),
        }
        names.sort();
        names.dedup();
        names.truncate(MAX_LISTED_AGENTS);
        Ok(names)
    }
}

impl Repository for GitalyRepository {
    fn resolve(&self) -> BoxFuture<'_, Result<Option<Commit>, RepositoryError>> {
        Box::pin(within_time(self.resolve()))
    }

    fn read_file<'a>(
        &'a self,
        commit: &'a CommitId,
        path: &'a str,
        max_bytes: usize,
    ) -> BoxFuture<'a, Result<Option<Vec<u8>>, RepositoryError>> {
        Box::pin(within_time(self.read_file(commit, path, max_bytes)))
    }

    fn read_files<'a>(
        &'a self,
        commit: &'a CommitId,
        selection: &'a Arc<FileSelection>,
    ) -> BoxFuture<'a, Result<SelectedFiles, RepositoryError>> {
        Box::pin(async move {
            // Gitaly says no more about the commit.
            Ok(SelectedFiles { files: self.read_files(commit, selection).await?, ..SelectedFiles::default() })
        })
    }

    fn list_agents<'a>(
        &'a self,
        commit: &'a CommitId,
    ) -> BoxFuture<'a, Result<Vec<AgentName>, RepositoryError>> {
        Box::pin(within_time(self.list_agents(commit)))
    }
}

/// The responses of a call. Dropping it cancels the call.
struct Responses<R>(Streaming<R>);

impl<R> Responses<R> {
    async fn next(&mut self) -> Result<Option<R>, GitalyError> {
        self.0.message().await.map_err(GitalyError::Status)
    }
}

/// The kind of the entry at a path.
enum EntryKind {
    Missing,
    File,
    Other(&'static str),
}

fn kind(first: &TreeEntryResponse) -> EntryKind {
    match (first.kind, first.mode & MODE_TYPE) {
        _ if first.id.is_empty() => EntryKind::Missing,
        (BLOB, MODE_FILE) => EntryKind::File,
        (BLOB, _) => EntryKind::Other("a symbolic link"),
        (TREE, _) => EntryKind::Other("a directory"),
        _ => EntryKind::Other("a submodule"),
    }
}

/// Returns whether a directory, with all directories above it, may have selected files.
fn enters_all(selection: &FileSelection, directory: &str) -> bool {
    let ends = directory.match_indices('/').map(|(end, _)| end).chain([directory.len()]);
    ends.into_iter().all(|end| selection.enters(&directory[..end]))
}

/// Returns the agent whose configuration file the entry is.
fn configured_agent(entry: &TreeEntry) -> Option<AgentName> {
    let file = entry.kind == BLOB_ENTRY && entry.mode & MODE_TYPE == MODE_FILE;
    let path = str::from_utf8(&entry.path).ok().filter(|_| file)?;
    let path = path.strip_prefix(AGENTS_DIRECTORY)?.strip_prefix('/')?;
    let (name, file) = path.split_once('/')?;
    if file == CONFIGURATION_FILE { name.parse().ok() } else { None }
}

async fn within_time<T>(
    call: impl Future<Output = Result<T, RepositoryError>>,
) -> Result<T, RepositoryError> {
    let late = || unavailable(format!("Gitaly did not answer within {} s", CALL_TIMEOUT.as_secs()));
    timeout(CALL_TIMEOUT, call).await.unwrap_or_else(|_| Err(late()))
}

fn unavailable(problem: String) -> RepositoryError {
    RepositoryError::Unavailable(problem)
}

impl From<GitalyError> for RepositoryError {
    fn from(error: GitalyError) -> Self {
        Self::Unavailable(error.to_string())
    }
}

impl From<Status> for GitalyError {
    fn from(status: Status) -> Self {
        Self::Status(status)
    }
}
