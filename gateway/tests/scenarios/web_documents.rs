//! The folder of documents at the listener of the web page.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::{fs, os::unix::fs::symlink, path::Path};

use gateway::config::WebConfig;
use http::{
    Method,
    header::{
        ACCEPT_ENCODING, ALLOW, CONTENT_ENCODING, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, IF_NONE_MATCH,
        LOCATION, VARY,
    },
};
use http_body_util::BodyExt as _;
use kas_testing::world::{World, text};

use crate::web::{Browser, with_page};

/// The digest of `start()`: `printf 'start()' | openssl dgst -sha256 -binary | base64`.
const DIGEST: &str = "DIm7WJS6ZKDYe5qFLPy+h4JFI9Bol5QmYC57mt3Fb00=";

fn config(folder: &Path) -> WebConfig {
    serde_saphyr::from_str(&format!("listen: {{}}\ndocs_directory: {}\n", folder.display())).unwrap()
}

#[tokio::test(start_paused = true)]
async fn documents_need_no_session_and_stay_in_their_folder() {
    let directory = tempfile::tempdir().unwrap();
    let folder = directory.path().join("site");
    fs::create_dir_all(folder.join("0.2.0")).unwrap();
    fs::write(directory.path().join("secret"), "secret").unwrap();
    symlink(directory.path().join("secret"), folder.join("link.txt")).unwrap();
    symlink(directory.path(), folder.join("above")).unwrap();
    fs::write(folder.join("index.html"), "<script>start()</script>").unwrap();
    fs::write(folder.join("0.2.0/index.html"), "the version").unwrap();
    fs::write(folder.join("0.2.0/a b.css"), "a {}").unwrap();
    let mut web = config(&folder);
    web.read_documents(Path::new("kas.yaml")).unwrap();
    let world = World::with(|config| {
        with_page(config);
        config.web = Some(web);
    });
    let browser = Browser::of(world);
    let get = async |path: &'static str| browser.send(Method::GET, path, "", &[]).await;

    let response = get("/docs/").await;
    assert_eq!(response.headers()[CONTENT_TYPE], "text/html; charset=utf-8");
    let policy = response.headers()[CONTENT_SECURITY_POLICY].to_str().unwrap();
    assert!(policy.contains(&format!("script-src 'self' 'sha256-{DIGEST}'; ")), "{policy}");
    assert!(!policy.contains("connect-src") && policy.starts_with("default-src 'none'"), "{policy}");
    assert_eq!(text(response).await, "<script>start()</script>");
    for (path, location) in [("/docs", "/docs/"), ("/docs/0.2.0", "/docs/0.2.0/")] {
        let response = get(path).await;
        assert_eq!(
            (response.status().as_u16(), &response.headers()[LOCATION]),
            (308, &location.parse().unwrap())
        );
    }
    assert_eq!(text(get("/docs/0.2.0/").await).await, "the version");
    assert_eq!(text(get("/docs/0.2.0/a%20b.css").await).await, "a {}");
    for path in [
        "/docs/link.txt",
        "/docs/above/secret",
        "/docs/../secret",
        "/docs/%2e%2e/secret",
        "/docs/..%2fsecret",
        "/docs//etc/passwd",
        "/docs/0.2.0/none.html",
    ] {
        assert_eq!(get(path).await.status(), 404, "{path}");
    }
    let head = browser.send(Method::HEAD, "/docs/", "", &[]).await;
    assert_eq!((head.status().as_u16(), text(head).await.as_str()), (200, ""));
    let refused = browser.send(Method::POST, "/docs/", "", &[]).await;
    assert_eq!((refused.status().as_u16(), &refused.headers()[ALLOW]), (405, &"GET, HEAD".parse().unwrap()));
    let page = text(get("/docsother").await).await;
    assert!(page.contains("<!doctype html>") || page.contains("<!DOCTYPE html>"), "{page}");
}

#[tokio::test(start_paused = true)]
async fn documents_are_compressed_and_sent_once() {
    let directory = tempfile::tempdir().unwrap();
    let page = "<p>a paragraph of a page</p>\n".repeat(100);
    fs::write(directory.path().join("index.html"), &page).unwrap();
    fs::write(directory.path().join("windows.html"), "<script>\r\nstart()\r\n</script>").unwrap();
    fs::write(directory.path().join("unix.html"), "<script>\nstart()\n</script>").unwrap();
    let mut web = config(directory.path());
    web.read_documents(Path::new("kas.yaml")).unwrap();
    let world = World::with(|config| {
        with_page(config);
        config.web = Some(web);
    });
    let browser = Browser::of(world);

    let gzip = browser.send(Method::GET, "/docs/", "", &[(ACCEPT_ENCODING.as_str(), "gzip")]).await;
    assert_eq!(gzip.headers()[CONTENT_ENCODING], "gzip");
    assert_eq!(gzip.headers()[VARY], "accept-encoding");
    let length = gzip.into_body().collect().await.unwrap().to_bytes().len();
    assert!(length < page.len() / 10, "{length}");
    let whole = browser.send(Method::GET, "/docs/", "", &[]).await;
    let etag = whole.headers()[ETAG].to_str().unwrap().to_owned();
    assert_eq!(text(whole).await, page);
    let strong = etag.trim_start_matches("W/").to_owned();
    for tags in [etag.clone(), strong, format!("W/\"other\", {etag}"), "*".to_owned()] {
        let known = browser.send(Method::GET, "/docs/", "", &[(IF_NONE_MATCH.as_str(), &*tags)]).await;
        assert!(known.headers().contains_key(CONTENT_SECURITY_POLICY));
        assert_eq!((known.status().as_u16(), text(known).await.as_str()), (304, ""), "{tags}");
    }
    let other = browser.send(Method::GET, "/docs/", "", &[(IF_NONE_MATCH.as_str(), "W/\"other\"")]).await;
    assert_eq!(other.status(), 200);

    let policy = async |path: &'static str| {
        let response = browser.send(Method::GET, path, "", &[]).await;
        response.headers()[CONTENT_SECURITY_POLICY].clone()
    };
    assert_eq!(policy("/docs/windows.html").await, policy("/docs/unix.html").await, "as browsers read both");
}

#[test]
fn folder_without_documents_is_an_error_at_the_start() {
    let directory = tempfile::tempdir().unwrap();
    for folder in [directory.path().to_owned(), directory.path().join("missing")] {
        let error = config(&folder).read_documents(Path::new("kas.yaml")).unwrap_err().to_string();
        assert!(error.contains("web.docs_directory") && error.contains(folder.to_str().unwrap()), "{error}");
    }
}
