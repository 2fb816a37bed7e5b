//! A server that speaks Git's HTTP protocol with TLS.

use std::{
    convert::Infallible,
    io::Write as _,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Arc,
};

use bytes::Bytes;
use http::{Request, Response, StatusCode, header::AUTHORIZATION};
use http_body_util::{BodyExt as _, Full};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use rustls::{ServerConfig, pki_types::PrivateKeyDer};
use tokio::{net::TcpListener, task::spawn_blocking};
use tokio_rustls::TlsAcceptor;
use tokio_util::task::AbortOnDropHandle;

use super::{Fixture, MAX, PATH, TEXT, read};
use crate::{
    AGENTS_DIRECTORY, Location, Reference, Repository as _, RepositoryError, RepositorySettings,
    remote::RemoteRepository,
};

/// `git:secret` in base64.
const CREDENTIALS: &str = "Basic Z2l0OnNlY3JldA==";

struct Server {
    address: SocketAddr,
    authority: PathBuf,
    password: PathBuf,
    _task: AbortOnDropHandle<()>,
}

impl Server {
    async fn start(fixture: &Fixture) -> Self {
        let certified = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let authority = fixture.directory.path().join("ca.pem");
        std::fs::write(&authority, certified.cert.pem()).unwrap();
        let password = fixture.directory.path().join("password");
        std::fs::write(&password, "secret\n").unwrap();
        let key = PrivateKeyDer::try_from(certified.signing_key.serialize_der()).unwrap();
        let config = ServerConfig::builder_with_provider(tls::provider())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certified.cert.der().clone()], key)
            .unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let bare = fixture.bare();
        let task = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (acceptor, bare) = (acceptor.clone(), bare.clone());
                tokio::spawn(async move {
                    let Ok(stream) = acceptor.accept(stream).await else { return };
                    let service = service_fn(move |request| {
                        let bare = bare.clone();
                        async move { Ok::<_, Infallible>(respond(request, bare).await) }
                    });
                    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
                });
            }
        });
        Self { address, authority, password, _task: AbortOnDropHandle::new(task) }
    }

    fn repository(&self, path: &str, password: Option<PathBuf>) -> RemoteRepository {
        self.repository_trusting(&self.authority, path, password)
    }

    fn repository_trusting(
        &self,
        authority: &Path,
        path: &str,
        password: Option<PathBuf>,
    ) -> RemoteRepository {
        RemoteRepository::new(RepositorySettings {
            location: Location::Https {
                url: format!("https://localhost:{}{path}", self.address.port()),
                credentials: password.map(|file| ("git".to_owned(), file)),
                ca_certificate_file: Some(authority.to_owned()),
            },
            reference: Reference::Default,
            directory: AGENTS_DIRECTORY.to_owned(),
        })
    }
}

async fn respond(request: Request<Incoming>, bare: PathBuf) -> Response<Full<Bytes>> {
    let status = |status: StatusCode| Response::builder().status(status);
    let empty = || Full::new(Bytes::new());
    let path = request.uri().path().to_owned();
    if path.starts_with("/moved") {
        let to = "https://elsewhere.example.com/repo.git/info/refs?service=git-upload-pack";
        return status(StatusCode::FOUND).header("location", to).body(empty()).unwrap();
    }
    if path.starts_with("/page") {
        return status(StatusCode::OK)
            .header("content-type", "text/html")
            .body(Full::new("<p>".into()))
            .unwrap();
    }
    if path.starts_with("/endless") {
        let line = format!("{:04x}{}", 65520, "a".repeat(65516));
        let body = format!("000eversion 2\n{}", line.repeat(1100));
        let kind = "application/x-git-upload-pack-advertisement";
        return status(StatusCode::OK).header("content-type", kind).body(Full::new(body.into())).unwrap();
    }
    if request.headers().get(AUTHORIZATION).is_none_or(|value| value != CREDENTIALS) {
        return status(StatusCode::UNAUTHORIZED).body(empty()).unwrap();
    }
    let (arguments, kind): (&[&str], _) = match &*path {
        "/repo.git/info/refs" => (&["--advertise-refs"], "advertisement"),
        "/repo.git/git-upload-pack" => (&[], "result"),
        _ => return status(StatusCode::NOT_FOUND).body(empty()).unwrap(),
    };
    let body = request.into_body().collect().await.unwrap().to_bytes();
    let output = spawn_blocking(move || {
        let mut child = Command::new("git")
            .args(["upload-pack", "--stateless-rpc"])
            .args(arguments)
            .arg(bare)
            .env("GIT_PROTOCOL", "version=2")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(&body).unwrap();
        child.wait_with_output().unwrap().stdout
    });
    let kind = format!("application/x-git-upload-pack-{kind}");
    let output = output.await.unwrap();
    status(StatusCode::OK).header("content-type", kind).body(Full::new(output.into())).unwrap()
}

#[tokio::test]
async fn file_is_read_with_the_password_of_a_file() {
    let Some(fixture) = Fixture::with_agent() else { return };
    let server = Server::start(&fixture).await;
    let repository = server.repository("/repo.git", Some(server.password.clone()));
    assert_eq!(read(&repository, PATH).await.unwrap().as_deref(), Some(TEXT));
    let commit = repository.resolve().await.unwrap().unwrap().id;
    assert_eq!(repository.list_agents(&commit).await.unwrap(), ["prod".parse().unwrap()]);

    std::fs::write(&server.password, "rotated").unwrap();
    let error = repository.resolve().await.unwrap_err().to_string();
    assert!(error.contains("401 Unauthorized: it refuses the credentials"), "{error}");
    assert!(!error.contains("rotated"), "{error}");
}

#[tokio::test]
async fn large_file_is_refused() {
    let Some(fixture) = Fixture::with_agent() else { return };
    let mut random = vec![0; 1 << 20];
    getrandom::fill(&mut random).unwrap();
    std::fs::write(fixture.work().join(PATH), &random).unwrap();
    fixture.commit();
    let server = Server::start(&fixture).await;
    let repository = server.repository("/repo.git", Some(server.password.clone()));
    let error = read(&repository, PATH).await.unwrap_err();
    assert_eq!(error, RepositoryError::TooLarge { path: PATH.to_owned(), max_bytes: MAX });
}

#[tokio::test]
async fn response_that_is_not_of_git_is_refused() {
    let Some(fixture) = Fixture::with_agent() else { return };
    let server = Server::start(&fixture).await;
    for (path, expected) in [
        ("/repo.git", "401 Unauthorized: it refuses the credentials"),
        ("/moved.git", "it redirects to \"https://elsewhere.example.com/repo.git/info/refs\""),
        ("/page", "'smart' protocol"),
        ("/endless", "the response has over"),
    ] {
        let error = server.repository(path, None).resolve().await.unwrap_err().to_string();
        assert!(error.contains(expected), "{path}: {error}");
    }
    let password = Some(server.password.clone());
    let error = server.repository("/other.git", password).resolve().await.unwrap_err().to_string();
    assert!(error.contains("404 Not Found: it has no such repository"), "{error}");
}

#[tokio::test]
async fn certificate_of_another_authority_is_refused() {
    let Some(fixture) = Fixture::with_agent() else { return };
    let (server, other) = (Server::start(&fixture).await, Fixture::new().unwrap());
    let other = Server::start(&other).await;
    let password = Some(server.password.clone());
    let repository = server.repository_trusting(&other.authority, "/repo.git", password);
    let error = repository.resolve().await.unwrap_err().to_string();
    assert!(error.contains("certificate"), "{error}");
}
