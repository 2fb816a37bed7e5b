//! Artifacts of a registry of this machine.

use std::{
    collections::HashMap,
    convert::Infallible,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use bytes::Bytes;
use futures_util::future::join_all;
use git::{FileLimits, FileSelection, Repository, RepositoryConfig, RepositoryError};
use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use outbound::AddressPolicy;
use parking_lot::Mutex;
use serde_json::json;
use sha2::{Digest as _, Sha256};
use tar::EntryType;
use tokio::net::TcpListener;

use crate::{
    OciRepository, OciSettings,
    unpack::tests::{archive, gzip},
};

const FLUX: &str = "application/vnd.cncf.flux.content.v1.tar+gzip";

/// A registry. Clones share it.
#[derive(Clone, Default)]
struct Registry(Arc<State>);

#[derive(Default)]
struct State {
    /// Manifests and blobs by their paths.
    content: Mutex<HashMap<String, Bytes>>,
    /// The credential of a user and the token that it gives, if the registry has one.
    secret: Mutex<Option<String>>,
    /// The target of redirects of all requests.
    redirect: Mutex<Option<String>>,
    /// The server of tokens, for all requests.
    realm: Mutex<Option<String>>,
    /// A path that is elsewhere.
    moved: Mutex<Option<(String, String)>>,
    /// The body of its errors, if it fails.
    failure: Mutex<Option<String>>,
    requests: Mutex<Vec<String>>,
    blobs: AtomicUsize,
}

fn digest(content: &[u8]) -> String {
    let hex: String = Sha256::digest(content).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}

impl Registry {
    /// Starts a registry and returns its address.
    async fn start(&self) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (registry, host) = (self.clone(), address.clone());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (registry, host) = (registry.clone(), host.clone());
                let service = service_fn(move |request| {
                    let response = registry.answer(&host, &request);
                    async { Ok::<_, Infallible>(response) }
                });
                tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
            }
        });
        address
    }

    fn answer(&self, host: &str, request: &Request<Incoming>) -> Response<Full<Bytes>> {
        let path = request.uri().path().to_owned();
        self.0.requests.lock().push(format!("{} {path}", request.method()));
        let authorization =
            request.headers().get("authorization").and_then(|value| value.to_str().ok()).unwrap_or_default();
        let status = |status: StatusCode| Response::builder().status(status).body(Full::default()).unwrap();
        if let Some(secret) = &*self.0.secret.lock() {
            if path == "/token" {
                return if authorization == secret {
                    Response::new(Full::from(r#"{"token": "t0ken"}"#))
                } else {
                    status(StatusCode::UNAUTHORIZED)
                };
            }
            if authorization != "Bearer t0ken" {
                let challenge = format!("Bearer realm=\"http://{host}/token\",service=\"registry\"");
                let mut refused = status(StatusCode::UNAUTHORIZED);
                refused.headers_mut().insert("www-authenticate", challenge.parse().unwrap());
                return refused;
            }
        }
        let moved = self.0.moved.lock().clone().filter(|(from, _)| *from == path).map(|(_, to)| to);
        if let Some(to) = moved.or_else(|| self.0.redirect.lock().clone()) {
            let moved = Response::builder().status(StatusCode::TEMPORARY_REDIRECT).header("location", to);
            return moved.body(Full::default()).unwrap();
        }
        if let Some(realm) = &*self.0.realm.lock() {
            let challenge = format!("Bearer realm=\"{realm}\"");
            let asked =
                Response::builder().status(StatusCode::UNAUTHORIZED).header("www-authenticate", challenge);
            return asked.body(Full::default()).unwrap();
        }
        if let Some(body) = self.0.failure.lock().clone() {
            return Response::builder().status(StatusCode::CONFLICT).body(Full::from(body)).unwrap();
        }
        let Some(content) = self.0.content.lock().get(&path).cloned() else {
            return match &*path {
                "/v2/" => status(StatusCode::OK),
                _ => status(StatusCode::NOT_FOUND),
            };
        };
        if path.contains("/blobs/") {
            self.0.blobs.fetch_add(1, Relaxed);
        }
        let body = if request.method() == Method::HEAD { Bytes::new() } else { content.clone() };
        let response = Response::builder().header("docker-content-digest", digest(&content));
        response.body(Full::from(body)).unwrap()
    }

    /// Pushes an artifact with one layer, and returns its digest.
    fn push(&self, tag: &str, media_type: &str, layer: &Bytes) -> String {
        let descriptor = json!({"mediaType": media_type, "digest": digest(layer), "size": layer.len()});
        self.0.content.lock().insert(format!("/v2/org/app/blobs/{}", digest(layer)), layer.clone());
        self.push_manifest(tag, &json!([descriptor]))
    }

    /// Pushes a manifest, and returns its digest.
    fn push_manifest(&self, tag: &str, layers: &serde_json::Value) -> String {
        let config = json!({"mediaType": "application/vnd.cncf.flux.config.v1+json", "digest": digest(b"{}"), "size": 2});
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": config,
            "layers": layers,
            "annotations": {"org.opencontainers.image.revision": "main@sha1:abc\u{1b}[2J"},
        });
        let manifest = Bytes::from(manifest.to_string());
        let mut content = self.0.content.lock();
        for reference in [tag.to_owned(), digest(&manifest)] {
            content.insert(format!("/v2/org/app/manifests/{reference}"), manifest.clone());
        }
        digest(&manifest)
    }
}

fn repository(address: &str, rest: &str, keys: &str) -> OciRepository {
    let text = format!("{{url: 'oci://{address}/org/app{rest}'{keys}}}");
    let section: RepositoryConfig = settings::parse(Path::new("kas.yaml"), &text).unwrap();
    let settings = OciSettings::new(Path::new("kas.yaml"), "repository", &section).unwrap();
    OciRepository::new(settings, AddressPolicy::new("agent.gitops.allowed_networks", &[]))
}

fn layer(value: &str) -> Bytes {
    gzip(&archive(&[
        ("./prod/a.yaml", EntryType::Regular, value.as_bytes()),
        ("README", EntryType::Regular, b"x"),
    ]))
}

fn selection(bytes: usize) -> Arc<FileSelection> {
    let limits = FileLimits { files: 10, file_bytes: bytes, bytes };
    Arc::new(FileSelection::new(["**/*.yaml"], |path: &str| path.ends_with(".yaml"), limits))
}

async fn read(repository: &OciRepository) -> Result<String, RepositoryError> {
    let commit = repository.resolve().await?.unwrap();
    let read = repository.read_files(&commit.id, &selection(1 << 20)).await?;
    let files =
        read.files.iter().map(|file| format!("{}={}", file.path, String::from_utf8_lossy(&file.content)));
    Ok(format!("{} {} {}", commit.branch, read.subject, files.collect::<Vec<_>>().join(" ")))
}

#[tokio::test]
async fn artifact_follows_its_tag_or_stays_at_its_digest() {
    let registry = Registry::default();
    let address = registry.start().await;
    let first = registry.push("v1", FLUX, &layer("one"));
    let (tag, pinned) = (repository(&address, ":v1", ""), repository(&address, &format!("@{first}"), ""));
    assert_eq!(read(&tag).await.unwrap(), "v1 main@sha1:abc[2J prod/a.yaml=one");
    registry.push("v1", FLUX, &layer("two"));
    assert_eq!(read(&tag).await.unwrap(), "v1 main@sha1:abc[2J prod/a.yaml=two");
    assert!(read(&pinned).await.unwrap().ends_with("prod/a.yaml=one"));
    let error = read(&repository(&address, ":absent", "")).await.unwrap_err().to_string();
    assert_eq!(error, format!("oci://{address}/org/app:absent: the registry does not have it"));
}

#[tokio::test]
async fn artifact_is_fetched_once_for_all_agents() {
    let registry = Registry::default();
    let address = registry.start().await;
    registry.push("v1", FLUX, &layer("one"));
    let repository = repository(&address, ":v1", "");
    for result in join_all((0..100).map(|_| read(&repository))).await {
        assert!(result.unwrap().ends_with("prod/a.yaml=one"));
    }
    assert_eq!(registry.0.blobs.load(Relaxed), 1);
}

/// A registry, or somebody between it and kas, that sends something else than was pushed.
#[tokio::test]
async fn content_that_differs_from_its_digest_is_refused() {
    let registry = Registry::default();
    let address = registry.start().await;
    let manifest = registry.push("v1", FLUX, &layer("one"));
    let replace = |part: &str, content: Bytes| {
        let mut all = registry.0.content.lock();
        let path = all.keys().find(|path| path.contains(part)).unwrap().clone();
        all.insert(path, content)
    };
    let before = replace("/blobs/", layer("two"));
    let error = read(&repository(&address, ":v1", "")).await.unwrap_err().to_string();
    assert!(error.ends_with(": its content differs from its digest"), "{error}");
    replace("/blobs/", before.unwrap());
    assert!(read(&repository(&address, ":v1", "")).await.is_ok());
    replace(&manifest, Bytes::from_static(b"{}"));
    let error = read(&repository(&address, &format!("@{manifest}"), "")).await.unwrap_err().to_string();
    assert!(error.ends_with(": its content differs from its digest"), "{error}");
}

/// A user who can push an artifact must not make kas send requests, nor learn of their responses.
#[tokio::test]
async fn urls_of_a_layer_are_never_requested() {
    let (registry, other) = (Registry::default(), Registry::default());
    let (address, elsewhere) = (registry.start().await, other.start().await);
    let secret = layer("secret");
    other.0.content.lock().insert("/metadata".to_owned(), secret.clone());
    let urls = json!([format!("http://{elsewhere}/metadata")]);
    let descriptor =
        json!({"mediaType": FLUX, "digest": digest(&secret), "size": secret.len(), "urls": urls});
    registry.push_manifest("v1", &json!([descriptor]));
    let error = read(&repository(&address, ":v1", "")).await.unwrap_err().to_string();
    assert!(error.ends_with("the registry does not have it"), "{error}");
    assert!(other.0.requests.lock().is_empty(), "{:?}", other.0.requests.lock());
}

/// A digest is a part of the path of a request that has the credential.
#[tokio::test]
async fn digest_of_a_layer_leads_to_no_other_repository() {
    let registry = Registry::default();
    let address = registry.start().await;
    for digest in ["sha256:/../../../../other/blobs/x", "../../other/manifests/latest", "sha512:00", ""] {
        registry.push_manifest("v1", &json!([{"mediaType": FLUX, "digest": digest, "size": 1}]));
        let error = read(&repository(&address, ":v1", "")).await.unwrap_err().to_string();
        assert!(error.ends_with("a layer has a digest that is not SHA-256"), "{error}");
    }
    assert!(registry.0.requests.lock().iter().all(|request| !request.contains("other")));
}

#[tokio::test]
async fn error_has_no_content_of_a_response() {
    let registry = Registry::default();
    let address = registry.start().await;
    registry.push("v1", FLUX, &layer("one"));
    *registry.0.failure.lock() = Some("secret".to_owned());
    let error = read(&repository(&address, ":v1", "")).await.unwrap_err().to_string();
    assert!(error.ends_with("the registry responds with the status 409 Conflict"), "{error}");
}

/// A registry may name any server: one for tokens, and one for the content.
#[tokio::test]
async fn registry_leads_to_no_other_server_without_tls_or_at_a_special_address() {
    let (registry, other) = (Registry::default(), Registry::default());
    let (address, elsewhere) = (registry.start().await, other.start().await);
    registry.push("v1", FLUX, &layer("one"));
    let port = elsewhere.rsplit_once(':').unwrap().1;
    for (url, expected) in [
        (
            format!("http://{elsewhere}/x?secret=s"),
            format!("names http://{elsewhere}/x, which kas does not follow"),
        ),
        (format!("https://127.0.0.2:{port}/x"), "127.0.0.2: 127.0.0.2 is a loopback address".to_owned()),
        (format!("https://localhost:{port}/x"), "localhost: ".to_owned()),
        ("https://169.254.169.254/latest".to_owned(), "169.254.169.254 is ".to_owned()),
        (format!("http://me@{address}/x"), "which kas does not follow".to_owned()),
        (format!("//{elsewhere}/x"), "which kas does not follow".to_owned()),
        ("file:///etc/passwd".to_owned(), "which kas does not follow".to_owned()),
        (String::new(), "which kas does not follow".to_owned()),
    ] {
        for leads in [&registry.0.redirect, &registry.0.realm] {
            *leads.lock() = Some(url.clone());
            let error = read(&repository(&address, ":v1", "")).await.unwrap_err().to_string();
            assert!(error.contains(&expected), "{url}: {error}");
            *leads.lock() = None;
        }
    }
    assert!(other.0.requests.lock().is_empty(), "{:?}", other.0.requests.lock());
}

#[tokio::test]
async fn redirect_within_the_registry_is_followed_a_few_times() {
    let registry = Registry::default();
    let address = registry.start().await;
    registry.push("v1", FLUX, &layer("one"));
    let moved = layer("one");
    let blob = format!("/v2/org/app/blobs/{}", digest(&moved));
    registry.0.content.lock().insert("/moved".to_owned(), moved);
    for to in ["/moved".to_owned(), format!("http://{address}/moved?signature=s")] {
        *registry.0.moved.lock() = Some((blob.clone(), to));
        assert!(read(&repository(&address, ":v1", "")).await.unwrap().ends_with("prod/a.yaml=one"));
    }
    *registry.0.moved.lock() = Some((blob.clone(), blob));
    let error = read(&repository(&address, ":v1", "")).await.unwrap_err().to_string();
    assert!(error.ends_with("the registry redirects more than 5 times"), "{error}");
}

#[tokio::test]
async fn manifest_of_any_size_is_not_read() {
    let registry = Registry::default();
    let address = registry.start().await;
    let pinned = registry.push("v1", FLUX, &layer("one"));
    let path = format!("/v2/org/app/manifests/{pinned}");
    registry.0.content.lock().insert(path, vec![b' '; 5 << 20].into());
    let error = read(&repository(&address, &format!("@{pinned}"), "")).await.unwrap_err().to_string();
    assert!(error.ends_with("it has over 4194304 bytes"), "{error}");
}

#[tokio::test]
async fn layer_that_is_too_large_or_unknown_is_refused() {
    let registry = Registry::default();
    let address = registry.start().await;
    registry.push("v1", FLUX, &layer("one"));
    let small = repository(&address, ":v1", "");
    let commit = small.resolve().await.unwrap().unwrap();
    let error = small.read_files(&commit.id, &selection(20)).await.unwrap_err().to_string();
    assert!(error.ends_with("is larger than 20 bytes"), "{error}");
    registry.push("v2", "application/wasm", &layer("one"));
    let error = read(&repository(&address, ":v2", "")).await.unwrap_err().to_string();
    assert!(error.contains("a layer of the type application/wasm"), "{error}");
}

#[tokio::test]
async fn credential_reaches_the_server_of_tokens_only() {
    let registry = Registry::default();
    let address = registry.start().await;
    registry.push("v1", FLUX, &layer("one"));
    // me:secret
    *registry.0.secret.lock() = Some("Basic bWU6c2VjcmV0".to_owned());
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("password");
    std::fs::write(&file, "secret\n").unwrap();
    let keys = format!(", username: me, password_file: {}", file.display());
    assert!(read(&repository(&address, ":v1", &keys)).await.unwrap().ends_with("prod/a.yaml=one"));
    std::fs::write(&file, "wrong").unwrap();
    for keys in [&*keys, ""] {
        let error = read(&repository(&address, ":v1", keys)).await.unwrap_err().to_string();
        assert!(error.contains("refuses the credential") && !error.contains("wrong"), "{error}");
    }
}
