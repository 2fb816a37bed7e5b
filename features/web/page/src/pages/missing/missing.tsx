import { Notice } from "../../ui/notice";

export function MissingPage() {
  return (
    <div class="stack">
      <h1>Not found</h1>
      <Notice>
        There is no such page. <a href="/">What needs attention</a>
      </Notice>
    </div>
  );
}
