//! The documents of kas: a folder that `make site` wrote, below `/docs/` of the listener of the page.

use std::{
    collections::HashMap,
    fmt, fs,
    io::{Error, ErrorKind, Result},
    path::Path,
};

use axum::body::Body;
use base64::{Engine as _, prelude::BASE64_STANDARD};
use flate2::Compression;
use http::{
    HeaderMap, HeaderValue, Response, StatusCode,
    header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, LOCATION},
};
use percent_encoding::percent_decode_str;
use sha2::{Digest as _, Sha256};

use crate::{assets, static_file::StaticFile};

/// The path of the folder.
const ROOT: &str = "/docs";
/// The file of a folder.
const INDEX: &str = "index.html";
/// The most bytes of all files.
const MAX_BYTES: u64 = 256 << 20;
/// Documents may change with each start of kas.
const CACHE: &str = "no-cache";

/// The files of a folder, by their paths in it. They are in memory, so that no path of a request leads out of the folder.
pub struct DocumentSite(HashMap<String, Document>);

struct Document {
    file: StaticFile,
    policy: HeaderValue,
}

impl fmt::Debug for DocumentSite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DocumentSite({} files)", self.0.len())
    }
}

impl DocumentSite {
    /// Reads a folder and the folders in it. Symbolic links in it are left out.
    ///
    /// # Errors
    ///
    /// A file cannot be read, the folder has no `index.html`, or its files have more than 256 MiB.
    pub fn read(folder: &Path) -> Result<Self> {
        let (mut files, mut remaining) = (HashMap::new(), MAX_BYTES);
        read_folder(folder, "", &mut files, &mut remaining)?;
        if !files.contains_key(INDEX) {
            return Err(Error::new(
                ErrorKind::NotFound,
                "the folder has no index.html, which `make site` writes",
            ));
        }
        Ok(Self(files))
    }

    /// Returns the response to GET for a path of the documents. `request` is the headers.
    pub(super) fn response(&self, path: &str, request: &HeaderMap) -> Response<Body> {
        let name = percent_decode_str(path.strip_prefix(ROOT).unwrap_or(path)).decode_utf8_lossy();
        let file = name.strip_prefix('/').map(|name| match name.rsplit('/').next() {
            None | Some("") => format!("{name}{INDEX}"),
            Some(_) => name.to_owned(),
        });
        if let Some(document) = file.as_deref().and_then(|name| self.0.get(name)) {
            let mut response = document.file.response(request, CACHE);
            assets::secure(&mut response);
            response.headers_mut().insert(CONTENT_SECURITY_POLICY, document.policy.clone());
            return response;
        }
        let mut response = Response::new(Body::empty());
        assets::secure(&mut response);
        response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static(CACHE));
        // Links of a page are relative to its folder.
        let is_folder = file.is_none_or(|name| self.0.contains_key(&format!("{name}/{INDEX}")));
        match HeaderValue::try_from(format!("{path}/")) {
            Ok(location) if is_folder => {
                response.headers_mut().insert(LOCATION, location);
                *response.status_mut() = StatusCode::PERMANENT_REDIRECT;
            }
            _ => {
                *response.status_mut() = StatusCode::NOT_FOUND;
                *response.body_mut() = Body::from("there is no such document\n");
            }
        }
        response
    }
}

/// Returns whether the documents have a path, if there are documents.
pub(super) fn is_path(path: &str) -> bool {
    path.strip_prefix(ROOT).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

fn read_folder(
    folder: &Path,
    prefix: &str,
    files: &mut HashMap<String, Document>,
    remaining: &mut u64,
) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let path = entry.path();
        let kind = entry.file_type()?;
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
        let name = format!("{prefix}{name}");
        if kind.is_dir() {
            read_folder(&path, &format!("{name}/"), files, remaining)?;
        } else if kind.is_file() {
            let left = remaining.checked_sub(entry.metadata()?.len());
            *remaining = left.ok_or_else(|| Error::other("the files have more than 256 MiB"))?;
            let content = fs::read(&path)?;
            let policy = content_security_policy(&name, &content);
            // 256 MiB would delay the start by many seconds with a better level.
            let file = StaticFile::new(&name, content.into(), Compression::fast());
            files.insert(name, Document { file, policy });
        }
    }
    Ok(())
}

/// Returns the policy of a file. mdbook writes scripts into its pages: the policy has the digest of each, so that no other inline script
/// runs in the origin of the page, which has sessions. For the same reason no script sends requests: the index of the search is a script. Icons of mdbook are `data:`
/// URLs in its styles.
fn content_security_policy(name: &str, content: &[u8]) -> HeaderValue {
    let text = if name.ends_with(".html") { String::from_utf8_lossy(content) } else { "".into() };
    // Browsers do the same before they compare digests (HTML standard, "preprocessing the input stream").
    let text = text.replace("\r\n", "\n").replace('\r', "\n");
    let scripts = text.split("<script>").skip(1).filter_map(|rest| rest.split_once("</script>"));
    let digest = |script: &str| format!(" 'sha256-{}'", BASE64_STANDARD.encode(Sha256::digest(script)));
    let digests: String = scripts.map(|(script, _)| digest(script)).collect();
    let policy = format!(
        "default-src 'none'; script-src 'self'{digests}; style-src 'self' 'unsafe-inline'; img-src 'self' data:; font-src 'self'; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    );
    HeaderValue::try_from(policy).expect("base64 and constants")
}
