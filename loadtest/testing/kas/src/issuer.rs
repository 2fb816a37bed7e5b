//! An issuer of OIDC tokens in this process: it rotates keys, goes down, is slow, and answers garbage.

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use bytes::Bytes;
use futures_util::{FutureExt as _, future::BoxFuture};
use http::StatusCode;
use jsonwebtoken::{Algorithm, EncodingKey, crypto};
use oidc::{DocumentSource, EndpointUrl, FetchError};
use parking_lot::Mutex;
use percent_encoding::percent_decode_str;
use rcgen::{KeyPair, PKCS_RSA_SHA256, RsaKeySize, SigningKey as _};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

/// A key of an issuer.
pub struct IssuerKey {
    id: &'static str,
    pair: KeyPair,
    is_rsa: bool,
}

impl IssuerKey {
    /// Generates a key for ES256.
    pub fn ec(id: &'static str) -> Self {
        Self { id, pair: KeyPair::generate().unwrap(), is_rsa: false }
    }

    /// Generates a key for RS256.
    pub fn rsa(id: &'static str) -> Self {
        let pair = KeyPair::generate_rsa_for(&PKCS_RSA_SHA256, RsaKeySize::_2048).unwrap();
        Self { id, pair, is_rsa: true }
    }

    /// Returns the public key as a JWK.
    pub fn jwk(&self) -> Value {
        let part = |bytes: &[u8]| BASE64_URL_SAFE_NO_PAD.encode(bytes);
        let raw = self.pair.public_key_raw();
        if self.is_rsa {
            // RSAPublicKey (RFC 8017): a modulus of 256 bytes after a header of 9, and the exponent 65537.
            return json!({"kty": "RSA", "use": "sig", "kid": self.id, "n": part(&raw[9..265]), "e": "AQAB"});
        }
        // An uncompressed point.
        json!({"kty": "EC", "crv": "P-256", "use": "sig", "kid": self.id, "x": part(&raw[1..33]), "y": part(&raw[33..])})
    }

    /// Returns the bytes of the public key, which must not be a secret of HMAC.
    pub fn public_bytes(&self) -> &[u8] {
        self.pair.public_key_raw()
    }

    /// Signs a token with the usual header.
    pub fn token(&self, claims: &Value) -> String {
        let alg = if self.is_rsa { "RS256" } else { "ES256" };
        self.sign(&json!({"alg": alg, "kid": self.id, "typ": "JWT"}), claims)
    }

    /// Signs a token with a header that may claim another algorithm.
    pub fn sign(&self, header: &Value, claims: &Value) -> String {
        let part = |value: &Value| BASE64_URL_SAFE_NO_PAD.encode(value.to_string());
        let message = format!("{}.{}", part(header), part(claims));
        let signature = if self.is_rsa {
            BASE64_URL_SAFE_NO_PAD.encode(self.pair.sign(message.as_bytes()).unwrap())
        } else {
            let key = EncodingKey::from_ec_der(&self.pair.serialize_der());
            crypto::sign(message.as_bytes(), &key, Algorithm::ES256).unwrap()
        };
        format!("{message}.{signature}")
    }
}

/// The responses of an issuer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behavior {
    /// At once, with its documents.
    Up,
    /// With an error.
    Down,
    /// After this time.
    Slow(Duration),
    /// With a web page in place of each document.
    Garbage,
}

/// An issuer. Clones are the same issuer.
#[derive(Clone)]
pub struct TestIssuer(Arc<State>);

/// A code that the issuer has sent with a browser.
struct Code {
    /// The parameters of the authorization request.
    parameters: HashMap<String, String>,
    token: String,
}

struct State {
    codes: Mutex<HashMap<String, Code>>,
    keys: Mutex<Vec<Value>>,
    behavior: Mutex<Behavior>,
    fetches: AtomicU32,
}

impl TestIssuer {
    /// The claim `iss`.
    pub const URL: &str = "https://issuer.example.com";

    /// Starts an issuer with these public keys.
    pub fn new(keys: &[&IssuerKey]) -> Self {
        let issuer = Self(Arc::new(State {
            codes: Mutex::default(),
            keys: Mutex::default(),
            behavior: Mutex::new(Behavior::Up),
            fetches: AtomicU32::new(0),
        }));
        issuer.publish(keys);
        issuer
    }

    /// Replaces the public keys.
    pub fn publish(&self, keys: &[&IssuerKey]) {
        *self.0.keys.lock() = keys.iter().map(|key| key.jwk()).collect();
    }

    /// Logs a person with these claims in at the URL to which kas sends a browser. Returns the query of the redirect back to kas.
    pub fn authorize(&self, url: &str, key: &IssuerKey, claims: &Value) -> String {
        let (page, query) = url.split_once('?').unwrap();
        assert_eq!(page, format!("{}/authorize", Self::URL));
        let parameters: HashMap<String, String> = form(query);
        let mut claims = claims.clone();
        claims["nonce"] = json!(parameters["nonce"]);
        let mut codes = self.0.codes.lock();
        let (code, state) = (format!("code-{}", codes.len()), parameters["state"].clone());
        codes.insert(code.clone(), Code { parameters, token: key.token(&claims) });
        format!("code={code}&state={state}&iss={}", Self::URL)
    }

    /// Returns the response of the token endpoint to a form.
    fn exchange(&self, parameters: &HashMap<String, String>) -> (StatusCode, Value) {
        let refused = (StatusCode::BAD_REQUEST, json!({"error": "invalid_grant"}));
        // A code is valid once.
        let Some(Code { parameters: asked, token }) = self.0.codes.lock().remove(&parameters["code"]) else {
            return refused;
        };
        let challenge = BASE64_URL_SAFE_NO_PAD.encode(Sha256::digest(&parameters["code_verifier"]));
        let is_same = |name: &str| parameters[name] == asked[name];
        if challenge == asked["code_challenge"] && is_same("redirect_uri") && is_same("client_id") {
            (StatusCode::OK, json!({"id_token": token, "access_token": "opaque", "token_type": "Bearer"}))
        } else {
            refused
        }
    }

    async fn respond(&self, url: &EndpointUrl) -> Result<Option<Bytes>, FetchError> {
        let behavior = *self.0.behavior.lock();
        match behavior {
            Behavior::Up => {}
            Behavior::Down => return Err(FetchError::failed(url, &"connection refused")),
            Behavior::Slow(time) => tokio::time::sleep(time).await,
            Behavior::Garbage => return Ok(Some(Bytes::from_static(b"<html>Sorry</html>"))),
        }
        Ok(None)
    }

    /// Changes how the issuer responds.
    pub fn set(&self, behavior: Behavior) {
        *self.0.behavior.lock() = behavior;
    }

    /// Returns how often the keys or the discovery document were fetched.
    pub fn fetches(&self) -> u32 {
        self.0.fetches.load(Relaxed)
    }
}

/// Parses the parameters of a form.
fn form(text: &str) -> HashMap<String, String> {
    let decode = |part: &str| percent_decode_str(&part.replace('+', " ")).decode_utf8().unwrap().into_owned();
    let pairs = text.split('&').map(|pair| pair.split_once('=').unwrap());
    pairs.map(|(name, value)| (decode(name), decode(value))).collect()
}

/// Returns the claims of a valid token, with additional ones.
pub fn claims(additional: Value) -> Value {
    let mut claims = json!({
        "iss": TestIssuer::URL,
        "aud": "kas",
        "sub": "alice",
        "exp": now() + 600,
    });
    claims.as_object_mut().unwrap().extend(additional.as_object().unwrap().clone());
    claims
}

/// Returns the time in seconds since 1970.
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

impl fmt::Debug for TestIssuer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TestIssuer")
    }
}

impl DocumentSource for TestIssuer {
    fn get<'a>(&'a self, url: &'a EndpointUrl) -> BoxFuture<'a, Result<Bytes, FetchError>> {
        async move {
            self.0.fetches.fetch_add(1, Relaxed);
            if let Some(garbage) = self.respond(url).await? {
                return Ok(garbage);
            }
            let document = match url.uri().path() {
                "/.well-known/openid-configuration" => {
                    json!({
                        "issuer": Self::URL,
                        "jwks_uri": format!("{}/keys", Self::URL),
                        "authorization_endpoint": format!("{}/authorize", Self::URL),
                        "token_endpoint": format!("{}/token", Self::URL),
                        "authorization_response_iss_parameter_supported": true,
                    })
                }
                "/keys" => json!({"keys": *self.0.keys.lock()}),
                path => panic!("nothing is at {path}"),
            };
            Ok(Bytes::from(document.to_string()))
        }
        .boxed()
    }

    fn post<'a>(
        &'a self,
        url: &'a EndpointUrl,
        body: String,
    ) -> BoxFuture<'a, Result<(StatusCode, Bytes), FetchError>> {
        async move {
            if let Some(garbage) = self.respond(url).await? {
                return Ok((StatusCode::OK, garbage));
            }
            assert_eq!(url.uri().path(), "/token");
            let (status, response) = self.exchange(&form(&body));
            Ok((status, Bytes::from(response.to_string())))
        }
        .boxed()
    }
}
