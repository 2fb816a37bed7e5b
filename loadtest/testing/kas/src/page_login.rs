//! The logins of people to the web page at the stand-in of GitLab.

use kas_gitlab::LoginSettings;

/// The id of the application.
pub const APPLICATION: &str = "kas-page";

/// Returns the settings of logins to the web page at the stand-in, which has no secret for this application.
pub fn settings() -> LoginSettings {
    let application = serde_json::json!({"client_id": APPLICATION});
    LoginSettings {
        application: serde_json::from_value(application).unwrap(),
        url: "https://gitlab.example.com".parse().unwrap(),
    }
}
