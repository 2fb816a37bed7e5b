//! Callers with forged or missing identities.

use kas_testing::world::World;
use secrecy::ExposeSecret as _;
use testing::logs::Logs;

use crate::{
    cluster::{Seen, caller},
    http1::{exchange, head, status},
    http2::{END_STREAM, HEADERS, headers},
};

/// The identity of the caller in the cluster.
const ALICE: &str =
    "{impersonate: {username: alice, groups: [dev], uid: '7', extra: [{key: scopes, val: [read]}]}}";

/// Returns a kas whose caller has the identity of `access_as` in the cluster.
async fn attacked(access_as: &str) -> (World, Seen, impl Sized) {
    let world = World::new();
    world.set_caller_rights(&format!("services: ['*'], access_as: {access_as}"));
    let seen = Seen::default();
    let agent = world.agent(seen.services()).await;
    (world, seen, agent)
}

/// Returns the lines of an echoed head with the identity of the caller.
fn identity(answer: &str) -> Vec<String> {
    let lines = answer.lines().map(str::to_lowercase);
    let mut said: Vec<String> =
        lines.filter(|line| line.starts_with("impersonate-") || line.starts_with("x-remote")).collect();
    said.sort();
    said
}

#[tokio::test(start_paused = true)]
async fn attack_31_impersonation_cannot_be_overridden() {
    let (world, seen, _agent) = attacked(ALICE).await;
    let head = head(&world, "GET", "/kubernetes/who");
    for lines in [
        "Impersonate-User: root",
        "IMPERSONATE-USER: root",
        "impersonate-user:",
        "Impersonate-User: alice",
        "Impersonate-Group: system:masters",
        "Impersonate-Group: dev\r\nImpersonate-Group: system:masters",
        "Impersonate-Uid: 0",
        "iMPERSONATE-eXTRA-Scopes: write",
        "Impersonate-Extra-%73copes: write",
        "Impersonate-Anything: x",
        "Impersonate-: x",
        "Connection: Impersonate-User",
        "Connection: close, impersonate-group",
        "Connection: Impersonate-User\r\nImpersonate-User: root",
        "Impersonate_User: root",
    ] {
        let answer = exchange(&world, format!("{head}{lines}\r\n\r\n")).await;
        assert_eq!(status(&answer), 400, "{lines}: {answer}");
    }
    let mut over_http2 = caller(&world, &[]).await;
    let bearer = format!("Bearer {}", world.caller_token.expose_secret());
    over_http2
        .send(&headers(
            1,
            END_STREAM,
            &[
                (":method", "GET"),
                (":scheme", "http"),
                (":authority", "kas"),
                (":path", "/agents/prod/kubernetes/who"),
                ("authorization", &bearer),
                ("impersonate-group", "system:masters"),
            ],
        ))
        .await;
    over_http2.next_of(HEADERS).await.unwrap();
    assert!(String::from_utf8(over_http2.body(1).await.unwrap()).unwrap().contains("nested-impersonation"));
    assert_eq!(seen.all(), Vec::<String>::new());

    // Not in what comes after the body either, and not by the headers of another proxy.
    let body = "Transfer-Encoding: chunked\r\nTrailer: Impersonate-User\r\nX-Remote-User: root\r\n\
                X-Remote-Group: system:masters\r\n\r\n0\r\nImpersonate-User: root\r\n\r\n";
    let answer = exchange(&world, format!("{}{body}", head.replacen("GET", "POST", 1))).await;
    assert_eq!(status(&answer), 200, "{answer}");
    let alice = [
        "impersonate-extra-scopes: \"read\"",
        "impersonate-group: \"dev\"",
        "impersonate-uid: \"7\"",
        "impersonate-user: \"alice\"",
    ];
    assert_eq!(identity(&answer), alice);
}

#[tokio::test(start_paused = true)]
async fn attack_31_agent_access_forwards_impersonation() {
    let (world, _seen, _agent) = attacked("{agent: {}}").await;
    let head = head(&world, "GET", "/kubernetes/who");
    let lines =
        "IMPERSONATE-User: bob\r\nImpersonate-Group: a\r\nimpersonate-group: b\r\nX-Remote-User: root\r\n";
    let answer = exchange(&world, format!("{head}{lines}\r\n")).await;
    let bob = ["impersonate-group: \"a\"", "impersonate-group: \"b\"", "impersonate-user: \"bob\""];
    assert_eq!(identity(&answer), bob);
    // To lose one of them on the way would make the caller the agent itself (CVE-2021-31999).
    for lines in ["Connection: Impersonate-User\r\nImpersonate-User: bob", "Impersonate_User: bob"] {
        let answer = exchange(&world, format!("{head}{lines}\r\n\r\n")).await;
        assert_eq!(status(&answer), 400, "{lines}: {answer}");
    }
}

/// HTTP/2 keeps blanks around a value, which the API server removes.
#[tokio::test(start_paused = true)]
async fn attack_31_impersonated_name_cannot_have_blanks_around_it() {
    let (world, seen, _agent) = attacked("{agent: {}}").await;
    let mut over_http2 = caller(&world, &[]).await;
    let bearer = format!("Bearer {}", world.caller_token.expose_secret());
    for (stream, group) in [(1, " system:masters"), (3, "system:masters\t"), (5, "")] {
        let fields = [
            (":method", "GET"),
            (":scheme", "http"),
            (":authority", "kas"),
            (":path", "/agents/prod/kubernetes/who"),
            ("authorization", &bearer),
            ("impersonate-user", "bob"),
            ("impersonate-group", group),
        ];
        over_http2.send(&headers(stream, END_STREAM, &fields)).await;
        over_http2.next_of(HEADERS).await.unwrap();
        let answer = String::from_utf8(over_http2.body(stream).await.unwrap()).unwrap();
        assert!(
            answer.contains("impersonate-group must not be empty, begin or end with a blank"),
            "{answer}"
        );
    }
    assert_eq!(seen.all(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn attack_31_credentials_do_not_reach_the_cluster() {
    let (world, _seen, _agent) = attacked(ALICE).await;
    let head = head(&world, "GET", "/kubernetes/who");
    let lines = "Cookie: session=stolen\r\nProxy-Authorization: Basic stolen\r\nX-Csrf-Token: stolen\r\n\
                 Sec-WebSocket-Protocol: base64url.bearer.authorization.k8s.io.c3RvbGVu, v5.channel.k8s.io\r\n\
                 Sec-WebSocket-Protocol: BASE64URL.bearer.authorization.k8s.io.c3RvbGVu\r\n";
    let answer = exchange(&world, format!("{head}{lines}\r\n")).await;
    assert_eq!(status(&answer), 200, "{answer}");
    assert!(answer.contains("sec-websocket-protocol: \"v5.channel.k8s.io\""), "{answer}");
    for secret in ["stolen", "c3RvbGVu", world.caller_token.expose_secret()] {
        assert!(!answer.contains(secret), "{answer}");
    }
    let twice = "Sec-WebSocket-Protocol: base64url.bearer.authorization.k8s.io.c3RvbGVu\r\n".repeat(2);
    let answer = exchange(&world, format!("{head}{twice}\r\n")).await;
    assert!(status(&answer) == 400 && !answer.contains("c3RvbGVu"), "{answer}");
}

#[tokio::test(start_paused = true)]
async fn attack_32_malformed_or_repeated_credentials_are_refused() {
    use base64::{Engine as _, engine::general_purpose::STANDARD};

    let (world, seen, _agent) = attacked("{agent: {}}").await;
    let token = world.caller_token.expose_secret().to_owned();
    let basic = |text: &str| format!("Authorization: Basic {}", STANDARD.encode(text));
    let good = format!("Authorization: Bearer {token}");
    let huge = format!("Authorization: Bearer {}", "x".repeat(8000));
    let refused = [
        format!("{good}\r\n{good}"),
        format!("{good}\r\nAuthorization: Bearer x"),
        format!("Authorization: Bearer x\r\n{good}"),
        format!("{good}\r\n{}", basic(&format!("me:{token}"))),
        format!("{good}, Bearer x"),
        format!("{good}x"),
        format!("Authorization: Bearer {}", &token[..token.len() - 1]),
        format!("Authorization: Bearer {}", token.to_uppercase()),
        format!("Authorization: Bearer \"{token}\""),
        format!("Authorization: Bearer{token}"),
        format!("Authorization: Bearer :{token}"),
        format!("Authorization: Bearer ci:2:{token}"),
        format!("Authorization: Token {token}"),
        format!("Authorization: {token}"),
        format!("X-Authorization: Bearer {token}"),
        format!("Proxy-Authorization: Bearer {token}"),
        format!("Private-Token: {token}"),
        format!("Sec-WebSocket-Protocol: base64url.bearer.authorization.k8s.io.{token}"),
        format!("Cookie: authorization={token}; token={token}"),
        "Authorization: Bearer ".into(),
        "Authorization: Bearer".into(),
        "Authorization:".into(),
        "Authorization: Bearer \u{7f}".into(),
        "Authorization: Bearer \u{e9}".into(),
        huge,
        basic(""),
        basic("me"),
        basic("me:"),
        basic(":"),
        basic(&format!(":{token}")),
        basic(&format!("other:{token}")),
        basic(&format!("me:{token}:")),
        basic(&format!("{token}:me")),
        format!("Authorization: Basic {}", STANDARD.encode(b"me:\xff\xfe")),
        "Authorization: Basic bWU6eA".into(),
        "Authorization: Basic !!!".into(),
        "X-Nothing: 1".into(),
    ];
    for lines in refused {
        let request = format!("GET /agents/prod/kubernetes/who HTTP/1.1\r\nHost: kas\r\n{lines}\r\n\r\n");
        let answer = exchange(&world, request).await;
        assert!(matches!(status(&answer), 400 | 401 | 403), "{lines}: {answer}");
        assert!(!answer.contains(&token), "{lines}: {answer}");
    }
    assert_eq!(seen.all(), Vec::<String>::new());
    for lines in [good, format!("authorization:   bEARER   {token}  "), basic(&format!("me:{token}"))] {
        let request = format!("GET /agents/prod/kubernetes/who HTTP/1.1\r\nHost: kas\r\n{lines}\r\n\r\n");
        assert_eq!(status(&exchange(&world, request).await), 200, "{lines}");
    }
}

#[tokio::test(start_paused = true)]
async fn attack_32_token_in_the_url_is_refused_and_not_logged() {
    let logs = Logs::capture();
    let (world, seen, _agent) = attacked("{agent: {}}").await;
    let token = world.caller_token.expose_secret().to_owned();
    for target in [
        format!("/agents/prod/kubernetes/who?access_token={token}"),
        format!("/agents/prod/kubernetes/who?token={token}&private_token={token}"),
        format!("/agents/prod/kubernetes/who?authorization=Bearer%20{token}"),
        format!("/agents/{token}/kubernetes/who"),
        format!("/agents/prod/{token}/who"),
        format!("/k8s-proxy/who?token={token}"),
        format!("http://me:{token}@kas/agents/prod/kubernetes/who"),
    ] {
        let answer = exchange(&world, format!("GET {target} HTTP/1.1\r\nHost: kas\r\n\r\n")).await;
        assert!(matches!(status(&answer), 400 | 401 | 404), "{target}: {answer}");
        assert!(!answer.contains(&token), "{answer}");
    }
    assert_eq!(seen.all(), Vec::<String>::new());
    // Nor where the credential is a good one, and the query the cluster's.
    let head = head(&world, "GET", &format!("/kubernetes/who?token={token}"));
    assert_eq!(status(&exchange(&world, format!("{head}\r\n")).await), 200);
    let text = logs.text();
    assert!(text.contains("request failed") && text.contains("request answered"), "{text}");
    assert!(!text.contains(&token), "{text}");
}

/// Item 36. A test that measures time proves nothing on a shared machine. A client can only make kas compare the SHA-256 of its
/// token, in constant time. This test checks that the text of a token is used only where it is hashed and where it is printed.
#[test]
fn attack_36_tokens_are_compared_as_hashes() {
    // The crates of kas, those below it, and the features.
    let root = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let mut sources = ["gateway", "router", "store", "proto", "common", "features"]
        .map(|folder| root.join(folder))
        .to_vec();
    let mut exposing = Vec::new();
    while let Some(path) = sources.pop() {
        // The part of a feature that agentk has is a crate in a folder of that name.
        let is_of_agentk = path.ends_with("agentk") && path.join("Cargo.toml").is_file();
        if is_of_agentk
            || path.ends_with("tests")
            || path.ends_with("node_modules")
            || path.extension().is_some_and(|extension| extension != "rs")
        {
            continue;
        }
        if path.is_dir() {
            sources.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        let code = text.split("#[cfg(test)]").next().unwrap();
        let lines = code.lines().filter(|line| line.contains(".expose_secret()"));
        exposing.extend(lines.map(|line| line.trim().to_owned()));
    }
    exposing.sort();
    assert_eq!(
        exposing,
        [
            "\"stringData\": {\"token\": token.expose_secret()},",
            "\"token\": tokens.token.expose_secret(),",
            "\"token\": tokens.token.expose_secret(),",
            "(\"device_code\", device.device_code.expose_secret()),",
            "HeaderValue::try_from(format!(\"Bearer {prefix}{}\", self.token.expose_secret())).ok()?;",
            "Self(Sha256::digest(token.expose_secret().as_bytes()).into())",
            "Self::Stdout => print(line.expose_secret()),",
            "SessionId(sealed::id(token.expose_secret().as_bytes()))",
            "Some(sensitive(&format!(\"Bearer {}\", token.expose_secret())).ok_or(RegistryError::Token)?);",
            "UserCredential::Token(token) => User::Token(token.expose_secret()),",
            "access_key: credential.token.expose_secret(),",
            "access_token: tokens.token.expose_secret().to_owned(),",
            "csrf_token: credential.csrf_token.as_ref().map(|token| token.expose_secret()),",
            "for part in [Some(purpose), Some(token.expose_secret()), csrf_token.map(|csrf| csrf.expose_secret())]",
            "form.append_pair(\"client_secret\", secret.expose_secret());",
            "if is_agent_token(token.secret.expose_secret()) {",
            "if let Err(error) = self.application.revoke(tokens.token.expose_secret()).await {",
            "let Entry { token, expires, refresh_token } = serde_json::from_str(text.expose_secret()).ok()?;",
            "let _ = stdin.write_all(input.expose_secret().as_bytes()).await;",
            "let authorization = HeaderValue::from_str(&format!(\"Bearer {}\", token.expose_secret()));",
            "let bearer = format!(\"Bearer {}\", key.expose_secret());",
            "let bearer = format!(\"Bearer {}\", token.expose_secret().trim());",
            // Encrypted with a key that only the browser has.
            "let contents = Contents { token: self.token.expose_secret().into(), holder: self.holder.0, end };",
            "let credential = SecretString::from(format!(\"pat:{agent}:{}\", secret.expose_secret()));",
            "let credential: [u8; 32] = Sha256::digest(gitaly.token.expose_secret()).into();",
            "let key = text.expose_secret().trim();",
            "let line = SecretString::from(format!(\"{}\\n\", token.expose_secret()));",
            "let mut value = HeaderValue::try_from(format!(\"{scheme}{}\", token.expose_secret()))?;",
            "let parameters = [(\"grant_type\", \"refresh_token\"), (\"refresh_token\", token.expose_secret())];",
            "let parsed = UnverifiedToken::parse(token.expose_secret()).ok().flatten();",
            "let request = Request::builder().method(method).uri(uri).header(AUTHORIZATION, token.expose_secret());",
            "let secret = Secret::parse(text.expose_secret());",
            "let text = credential.token.expose_secret();",
            "let text = sealed::open(PURPOSE, token.expose_secret().as_bytes(), sealed)?;",
            "let token = SecretString::from(token.expose_secret().trim());",
            "let token = UnverifiedToken::parse(self.token.expose_secret()).ok().flatten();",
            "let token = credential.token.expose_secret();",
            // The key of the sections of notes in merge requests.
            "let token = token.expose_secret().as_bytes();",
            "let token = token.expose_secret();",
            "let token = token.expose_secret();",
            "let url = WebhookUrl::parse(text.expose_secret().trim(), self.allows_plain_text)",
            "let value = format!(\"Bearer {}\", session.token.expose_secret());",
            "let words = input.expose_secret().split(['\"', ' ', '\\n']).filter(|word| word.len() >= 20);",
            "let written = file.write_all(line.expose_secret().as_bytes()).and_then(|()| file.sync_all());",
            "print(&format!(\"token: {}\\nhash:  {}\\n\", token.expose_secret(), TokenHash::of(&token)))",
            "refresh_token: tokens.refresh_token.as_ref().map(|token| token.expose_secret().to_owned()),",
            "sealed::seal(PURPOSE, token.expose_secret().as_bytes(), text)",
            "self.bytes.expose_secret()",
            "sensitive(&format!(\"Basic {}\", STANDARD.encode(format!(\"{user}:{}\", password.expose_secret()))))",
            "token.expose_secret().starts_with(PREFIX)",
            "tokens.agent.expose_secret(),",
            "tokens.caller.expose_secret(),",
        ],
        "hashed for every comparison; sent to GitLab; the key of calls to Gitaly; checked for its form before that; parsed as a JWT; written into the \
         kubeconfig of `kas kubeconfig`; shown by `kas token new`; written into the files of `kas quickstart`; the key of what replicas and programs prove; sent to the \
         issuer, cached and given to kubectl by `kas login`; kept with the session of a page, whose requests it authenticates; \
         the keys, the token and the URL of a webhook; sent to a registry of OCI artifacts; the key of the record of a login at GitLab, and its tokens in \
         that record; of an agent that `kas agents register` makes, for its Secret or its file, and of its user, sent to GitLab"
    );
    // Two hashes are equal only if all of their bytes are.
    let hash = |token: &str| access::token::TokenHash::of(&token.into());
    assert!(hash("a") == hash("a") && hash("a") != hash("b"));
    let text = include_str!("../../access/src/token.rs");
    assert!(text.contains("self.0.ct_eq(&other.0).into()"), "in constant time");
    let (auth, store) =
        (include_str!("../../core/src/peers/auth.rs"), include_str!("../../core/src/peers/store_mac.rs"));
    let verified = [auth, store].map(|text| text.matches(".verify_slice(&").count());
    assert_eq!(verified, [2, 1], "in constant time: of requests and answers; of records and URLs");
    let text = include_str!("../../access/src/api_token.rs");
    assert!(
        text.contains("decode(token, &key") && !text.contains(".bytes() =="),
        "in constant time, by AWS-LC"
    );
}
