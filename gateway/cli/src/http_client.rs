//! The HTTP client of commands.

use std::path::Path;

use bytes::Bytes;
use http_body_util::Full;
use hyper_rustls::HttpsConnector;
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};

use crate::CliError;

/// A client for `https://` and `http://`, which follows no redirect.
pub(crate) type HttpClient = Client<HttpsConnector<HttpConnector>, Full<Bytes>>;

/// Returns a client that trusts the authorities of the file of `--cacert`, or those of the system. This blocks.
///
/// # Errors
///
/// The file cannot be read, or has no certificate of an authority.
pub(crate) fn http_client(cacert: Option<&Path>) -> Result<HttpClient, CliError> {
    let roots = match cacert {
        None => tls::system_roots(),
        Some(file) => {
            let pem = std::fs::read(file)
                .map_err(|error| CliError::usage(format!("--cacert {}: {error}", file.display())))?;
            tls::parse_roots(&pem)
                .map_err(|error| CliError::usage(format!("--cacert {} {error}", file.display())))?
        }
    };
    let mut http = HttpConnector::new();
    http.enforce_http(false);
    let connector = HttpsConnector::from((http, tls::client_config(roots, &[b"http/1.1"])));
    Ok(Client::builder(TokioExecutor::new()).build(connector))
}

/// Adds what to do to the errors of TLS that a wrong flag has.
pub(crate) fn explain(error: &str) -> String {
    let hint = if error.contains("UnknownIssuer") {
        "use --cacert FILE with the certificate of its authority"
    } else if error.contains("InvalidContentType") {
        "the server does not use TLS at this port; an http:// URL may be right"
    } else if error.contains("close_notify") {
        // The text of the library is long, and for developers.
        return "the connection was cut".to_owned();
    } else {
        return error.to_owned();
    };
    format!("{error}: {hint}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_a_wrong_flag_say_what_to_do() {
        let error = "client error (Connect): invalid peer certificate: UnknownIssuer";
        assert_eq!(
            explain(error),
            format!("{error}: use --cacert FILE with the certificate of its authority")
        );
        let cut = "peer closed connection without sending TLS close_notify: https://docs.rs/rustls";
        assert_eq!(explain(cut), "the connection was cut");
        assert_eq!(explain("connection refused"), "connection refused");
    }
}
