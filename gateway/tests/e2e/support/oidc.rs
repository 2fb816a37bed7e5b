//! A real OpenID Provider: the example server of the certified library zitadel/oidc, which needs Go and its module proxy once.

use std::{net::TcpListener, path::Path, process::Command};

use testing::skip::{installed, skipped};

use super::{Kas, Process, curl, eventually, run};

/// The version of the module. The program is below `target` once it is built.
const MODULE: &str = "github.com/zitadel/oidc/v3/example/server@v3.51.17";

/// A running provider with the public client `native` and the user `test-user@localhost`, whose `sub` is `id1`.
pub(crate) struct OidcProvider {
    /// The URL, as in the claim `iss`.
    pub(crate) url: String,
    _process: Process,
}

impl OidcProvider {
    /// The id of the client, which is also the audience of its tokens.
    pub(crate) const CLIENT: &str = "native";
    /// The redirect that the provider allows, with any port.
    pub(crate) const REDIRECT: &str = "http://localhost/auth/callback";

    /// Starts a provider, or skips the test if it is not built and cannot be.
    pub(crate) fn or_skip() -> Option<Self> {
        // `target` has a folder for each profile, which has the binary of kas.
        let program = Kas::program();
        let directory = program.ancestors().nth(2).unwrap().join("oidc-provider");
        let server = directory.join("server");
        if !server.is_file() && !build(&directory) {
            return None;
        }
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut command = Command::new(server);
        let process = Process::start("OpenID Provider", command.env("PORT", port.to_string()));
        let provider = Self { url: format!("http://localhost:{port}/"), _process: process };
        let document = format!("{}.well-known/openid-configuration", provider.url);
        eventually("the provider responds", || curl(&[&document]).status == 200);
        Some(provider)
    }

    /// Logs in as a person does in a browser, from the page that `kas login` prints to its redirect.
    pub(crate) fn log_in(&self, page: &str) {
        let redirect = curl(&[page]);
        let location = redirect.header("location").unwrap_or_else(|| panic!("{redirect:?}"));
        let (_, id) = location.split_once("authRequestID=").unwrap();
        let form = format!("username=test-user@localhost&password=verysecure&id={id}");
        let login = format!("{}login/username", self.url);
        let redirected = curl(&["--location", "--data", &form, &login]);
        assert!(redirected.text().contains("You are logged in"), "{redirected:?}");
    }
}

fn build(directory: &Path) -> bool {
    if !installed("go") {
        skipped("there is no go to build an OpenID Provider");
        return false;
    }
    let mut go = Command::new("timeout");
    go.args(["600", "go", "install", MODULE]).env("GOBIN", directory);
    // The go of a distribution may be older than the module allows.
    go.env("CGO_ENABLED", "0").env("GOTOOLCHAIN", "auto");
    let output = run(&mut go, b"");
    if !output.status.success() {
        skipped(&format!("{MODULE} cannot be built: {}", String::from_utf8_lossy(&output.stderr)));
    }
    output.status.success()
}
