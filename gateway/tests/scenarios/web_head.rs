//! HEAD, which is GET without the body (RFC 9110 section 9.3.2), on the page and on the listener for callers.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::sync::Arc;

use http::{
    Method, Request, Response,
    header::{ALLOW, CONTENT_LENGTH, CONTENT_TYPE, COOKIE},
};
use http_body_util::BodyExt as _;
use hyper::{body::Incoming, client::conn::http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use kas_testing::{
    server,
    world::{CALLER, text},
};
use tunnel::Body;

use crate::web::{Browser, services};

/// Paths of the page, and one of an agent that refuses the request.
const PATHS: [&str; 11] = [
    "/",
    "/no-file.js",
    "/web/v1/session",
    "/web/v1/issuers",
    "/web/v1/agents",
    "/web/v1/agents/prod",
    "/web/v1/agents/none",
    "/web/v1/environments",
    "/web/v1/audit",
    "/web/v1/requests/none",
    "/web/v1/nothing",
];

/// Sends a request of the page over HTTP/2.
async fn send_over_http2(browser: &Browser, method: Method, path: &str) -> Response<Incoming> {
    let (near, far) = tokio::io::duplex(64 << 10);
    let web = browser.world.kas.web.clone().unwrap();
    tokio::spawn(async move { web.serve(far, CALLER, Arc::default()).await });
    let request = Request::builder().method(method).uri(format!("https://kas.example.com:8156{path}"));
    let request = request.header(COOKIE, &browser.cookie).header("kas-web", "1");
    let request = request.header("sec-fetch-site", "same-origin").body(Body::empty()).unwrap();
    let (mut sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(near)).await.unwrap();
    tokio::spawn(connection);
    sender.send_request(request).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn head_has_the_fields_of_get_and_no_body() {
    let mut browser = Browser::new();
    let _agent = browser.world.agent(services()).await;
    browser.log_in().await;
    for path in PATHS {
        for over_http2 in [false, true] {
            let send = async |method| {
                if over_http2 {
                    send_over_http2(&browser, method, path).await
                } else {
                    browser.page(method, path).await
                }
            };
            let (get, head) = (send(Method::GET).await, send(Method::HEAD).await);
            assert_eq!(head.status(), get.status(), "{path}");
            assert_eq!(head.headers().get(CONTENT_TYPE), get.headers().get(CONTENT_TYPE), "{path}");
            let length = get.headers().get(CONTENT_LENGTH).cloned();
            let body = get.into_body().collect().await.unwrap().to_bytes();
            assert_eq!(
                length.as_ref().map_or(0, |length| length.to_str().unwrap().parse().unwrap()),
                body.len()
            );
            // The texts of both differ in the time.
            assert_eq!(head.headers().contains_key(CONTENT_LENGTH), length.is_some(), "{path}");
            let body = head.into_body().collect().await.unwrap().to_bytes();
            assert!(body.is_empty(), "{path}: {body:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn login_is_not_begun_by_head() {
    let mut browser = Browser::new();
    browser.log_in().await;
    for path in ["/web/v1/login?issuer=dex", "/web/v1/callback/dex?code=1"] {
        let refused = browser.page(Method::HEAD, path).await;
        assert_eq!((refused.status().as_u16(), &refused.headers()[ALLOW]), (405, &"GET".parse().unwrap()));
    }
    assert_eq!(browser.get("/web/v1/session").await.status(), 200, "the session goes on");
    let refused = browser.page(Method::HEAD, "/web/v1/live").await;
    assert_eq!(refused.status(), 405);
}

#[tokio::test(start_paused = true)]
async fn head_that_kas_refuses_has_no_body_over_http2() {
    let browser = Browser::new();
    let mut sender = server::http2(&browser.world).await;
    let mut send = async |method| {
        let mut request = browser.world.request("/agents/none/kubernetes/api");
        *request.method_mut() = method;
        sender.send_request(request).await.unwrap()
    };
    let (get, head) = (send(Method::GET).await, send(Method::HEAD).await);
    assert_eq!(
        (head.status(), head.headers()["kas-error"].clone()),
        (get.status(), get.headers()["kas-error"].clone())
    );
    assert_ne!(text(get).await, "");
    assert!(head.into_body().collect().await.unwrap().to_bytes().is_empty());
}
