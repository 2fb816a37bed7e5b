//! A stand-in for Gitaly: the three RPCs that kas calls, over a bare repository of the `git` program.
//!
//! It is strict: it refuses a call without a valid token of version 2, for another repository, or with fields that would bypass
//! the cache of Gitaly. Its messages are written from Gitaly's definitions, and not shared with kas.

mod messages;
mod repository;

use std::{
    io,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, SystemTime},
};

use axum::{Router, body::Body, extract::Request, response::Response, routing::post};
use futures_util::stream::{self, Stream};
use hmac::{Hmac, KeyInit as _, Mac as _};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    service::TowerToHyperService,
};
use kas_gitlab::gitaly::{GitalyServer, messages::RepositoryLocation};
use parking_lot::Mutex;
use prost::Message;
use sha2::Sha256;
use tempfile::TempDir;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, UnixListener},
};
use tokio_util::task::AbortOnDropHandle;
use tonic::{Status, metadata::MetadataMap, server::Grpc};
use tonic_prost::ProstCodec;
use tower::service_fn;

use self::messages::{
    GetTreeEntriesRequest, InfoRefsRequest, Repository, TreeEntryRequest, TreeEntryResponse,
};
pub use self::repository::{TestFile, TestRepository};

/// The secret of the server.
const TOKEN: &str = "gitaly-secret";
/// The projects that a server may hold: what GitLab calls them, and their paths.
const PROJECTS: [(&str, &str); 2] = [("project-7", "group/project"), ("project-8", "group/other")];
/// The largest part of a response, small enough that every response has several.
const PART: usize = 700;

/// A running server with one repository.
pub struct TestGitaly {
    /// The repository.
    pub repository: TestRepository,
    state: Arc<State>,
    directory: TempDir,
    tasks: Mutex<Vec<AbortOnDropHandle<()>>>,
}

struct State {
    repository: PathBuf,
    calls: Mutex<Vec<(&'static str, MetadataMap)>>,
    /// The error of every call, if there is one.
    failure: Mutex<Option<Status>>,
    ignores_max_size: AtomicBool,
}

impl Default for TestGitaly {
    fn default() -> Self {
        Self::new()
    }
}

impl TestGitaly {
    /// Creates a server with an empty repository, which listens nowhere yet.
    pub fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let repository = TestRepository::new(directory.path());
        let state = Arc::new(State {
            repository: repository.path().to_owned(),
            calls: Mutex::default(),
            failure: Mutex::default(),
            ignores_max_size: AtomicBool::new(false),
        });
        Self { repository, state, directory, tasks: Mutex::default() }
    }

    /// Listens on a port of loopback, and returns how kas reaches it.
    pub async fn listen(&self) -> GitalyServer {
        let listener = Arc::new(TcpListener::bind("127.0.0.1:0").await.unwrap());
        let address = listener.local_addr().unwrap();
        self.serve_each(move || {
            let listener = Arc::clone(&listener);
            async move { listener.accept().await.map(|(io, _)| io) }
        });
        server(format!("tcp://{address}"))
    }

    /// Listens on a Unix socket, and returns how kas reaches it.
    pub fn listen_on_socket(&self) -> GitalyServer {
        let path = self.directory.path().join("gitaly.socket");
        let listener = Arc::new(UnixListener::bind(&path).unwrap());
        self.serve_each(move || {
            let listener = Arc::clone(&listener);
            async move { listener.accept().await.map(|(io, _)| io) }
        });
        server(format!("unix:{}", path.display()))
    }

    /// Serves each connection that `accept` returns.
    pub fn serve_each<T, F>(&self, accept: impl Fn() -> F + Send + 'static)
    where
        T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
        F: Future<Output = io::Result<T>> + Send,
    {
        let state = Arc::clone(&self.state);
        let task = async move {
            loop {
                if let Ok(io) = accept().await {
                    tokio::spawn(serve(io, Arc::clone(&state)));
                }
            }
        };
        self.tasks.lock().push(AbortOnDropHandle::new(tokio::spawn(task)));
    }

    /// Returns how GitLab names the repository.
    pub fn location(&self) -> RepositoryLocation {
        RepositoryLocation {
            storage_name: "default".into(),
            relative_path: "@hashed/ab/cd.git".into(),
            gl_repository: "project-7".into(),
            gl_project_path: "group/project".into(),
            ..RepositoryLocation::default()
        }
    }

    /// Returns the methods that were called, with their metadata.
    pub fn calls(&self) -> Vec<(&'static str, MetadataMap)> {
        self.state.calls.lock().clone()
    }

    /// Makes every later call fail.
    pub fn fail_with(&self, status: Status) {
        *self.state.failure.lock() = Some(status);
    }

    /// Makes the server send files of any size.
    pub fn ignore_max_size(&self) {
        self.state.ignores_max_size.store(true, Relaxed);
    }
}

/// Returns the server at an address, with the right token.
pub fn server(address: String) -> GitalyServer {
    let features = [("gitaly-feature-quick".to_owned(), "true".to_owned())].into();
    GitalyServer { address, token: TOKEN.into(), features }
}

async fn serve<T>(io: T, state: Arc<State>)
where
    T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let routes = Router::new()
        .route(
            "/gitaly.SmartHTTPService/InfoRefsUploadPack",
            post({
                let state = Arc::clone(&state);
                |request| streaming(state, "InfoRefsUploadPack", request, info_refs)
            }),
        )
        .route(
            "/gitaly.CommitService/GetTreeEntries",
            post({
                let state = Arc::clone(&state);
                |request| streaming(state, "GetTreeEntries", request, get_tree_entries)
            }),
        )
        .route(
            "/gitaly.CommitService/TreeEntry",
            post(|request| streaming(state, "TreeEntry", request, tree_entry)),
        );
    let builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
    // Fails if the client closes the connection.
    _ = builder.serve_connection(TokioIo::new(io), TowerToHyperService::new(routes)).await;
}

async fn streaming<Q, R>(
    state: Arc<State>,
    method: &'static str,
    request: Request,
    respond: fn(&State, Q) -> Result<Vec<R>, Status>,
) -> Response
where
    Q: Message + Default + 'static,
    R: Message + 'static,
{
    let service = service_fn(move |request: tonic::Request<Q>| {
        let (metadata, _, message) = request.into_parts();
        let result = state.check(method, metadata).and_then(|()| respond(&state, message));
        async move { result.map(|parts| tonic::Response::new(into_stream(parts))) }
    });
    let mut grpc = Grpc::new(ProstCodec::<R, Q>::default());
    grpc.server_streaming(service, request).await.map(Body::new)
}

fn into_stream<R>(parts: Vec<R>) -> impl Stream<Item = Result<R, Status>> {
    stream::iter(parts.into_iter().map(Ok))
}

impl State {
    fn check(&self, method: &'static str, metadata: MetadataMap) -> Result<(), Status> {
        let token = metadata.get("authorization").and_then(|value| value.to_str().ok());
        check_token(token.ok_or_else(|| Status::unauthenticated("authentication required"))?)?;
        self.calls.lock().push((method, metadata));
        self.failure.lock().clone().map_or(Ok(()), Err)
    }
}

/// Verifies a token of version 2, which is valid for 30 s before and after its time.
fn check_token(value: &str) -> Result<(), Status> {
    let denied = || Status::permission_denied("permission denied");
    let parts: Vec<&str> = value.strip_prefix("Bearer ").ok_or_else(denied)?.split('.').collect();
    let ["v2", mac, time] = parts[..] else { return Err(denied()) };
    let seconds: u64 = time.parse().map_err(|_| denied())?;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    if now.abs_diff(Duration::from_secs(seconds)) > Duration::from_secs(30) {
        return Err(Status::permission_denied("token's validity window is in the past"));
    }
    let expected = Hmac::<Sha256>::new_from_slice(TOKEN.as_bytes()).unwrap().chain_update(time);
    let expected = expected.finalize().into_bytes();
    let expected: String = expected.iter().map(|byte| format!("{byte:02x}")).collect();
    if mac == expected { Ok(()) } else { Err(denied()) }
}

fn check_repository(repository: Option<Repository>) -> Result<(), Status> {
    let repository = repository.ok_or_else(|| Status::invalid_argument("repository not set"))?;
    let expected = |(repository, path): &(&str, &str)| Repository {
        storage_name: "default".into(),
        relative_path: "@hashed/ab/cd.git".into(),
        gl_repository: (*repository).into(),
        gl_project_path: (*path).into(),
        ..Repository::default()
    };
    if PROJECTS.iter().any(|project| repository == expected(project)) {
        Ok(())
    } else {
        Err(Status::not_found("repository not found"))
    }
}

fn info_refs(state: &State, request: InfoRefsRequest) -> Result<Vec<messages::InfoRefsResponse>, Status> {
    check_repository(request.repository)?;
    if !request.git_config_options.is_empty() || !request.git_protocol.is_empty() {
        return Err(Status::invalid_argument("this request bypasses the cache"));
    }
    let mut data = b"001e# service=git-upload-pack\n0000".to_vec();
    data.extend(
        repository::git(&state.repository, &["upload-pack", "--http-backend-info-refs", "."])
            .expect("a repository"),
    );
    let part = |part: &[u8]| messages::InfoRefsResponse { data: part.to_vec() };
    Ok(data.chunks(PART).map(part).collect())
}

fn get_tree_entries(
    state: &State,
    request: GetTreeEntriesRequest,
) -> Result<Vec<messages::GetTreeEntriesResponse>, Status> {
    check_repository(request.repository)?;
    let entries =
        repository::list(&state.repository, &text(request.revision), &text(request.path), request.recursive);
    let missing = if request.recursive {
        Status::not_found("invalid revision or path")
    } else {
        Status::invalid_argument("invalid revision or path")
    };
    let entries = entries.ok_or(missing)?;
    let part = |part: &[messages::TreeEntry]| messages::GetTreeEntriesResponse { entries: part.to_vec() };
    Ok(entries.chunks(2).map(part).collect())
}

fn tree_entry(state: &State, request: TreeEntryRequest) -> Result<Vec<TreeEntryResponse>, Status> {
    check_repository(request.repository)?;
    let entry = repository::entry(&state.repository, &text(request.revision), &text(request.path));
    let (mut first, content) = entry.ok_or_else(|| Status::not_found("tree entry not found"))?;
    let limited = request.max_size > 0 && !state.ignores_max_size.load(Relaxed);
    if limited && first.size > request.max_size {
        let problem = format!("object size ({}) is bigger than the maximum allowed size", first.size);
        return Err(Status::failed_precondition(problem));
    }
    let mut parts = content.chunks(PART).map(<[u8]>::to_vec);
    first.data = parts.next().unwrap_or_default();
    let more = parts.map(|data| TreeEntryResponse { data, ..TreeEntryResponse::default() });
    Ok([first].into_iter().chain(more).collect())
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).expect("kas sends text")
}
