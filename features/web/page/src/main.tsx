import { render } from "preact";
import "./tokens.css";
import "./base.css";
import { App } from "./app";
import { startRouter } from "./router";
import { startSession } from "./session";

startRouter();
startSession();
const root = document.getElementById("app");
if (root) render(<App />, root);
