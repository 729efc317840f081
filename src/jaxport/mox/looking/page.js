const rows = [...document.querySelectorAll(".row")];
const xml = new DOMParser().parseFromString(model, "text/xml");
const elements = [...xml.documentElement.querySelectorAll("*")].filter(
  element => !(element.tagName === "body" && element.attributes.length === 1));
const found = query => {
  if (!query) return new Set();
  if (!query.startsWith("/")) return new Set(rows.filter(row => row.textContent.includes(query)));
  const hits = xml.evaluate(query, xml, null, XPathResult.ORDERED_NODE_SNAPSHOT_TYPE, null);
  const index = new Map(elements.map((element, position) => [element, rows[position]]));
  return new Set([...Array(hits.snapshotLength).keys()].map(i => index.get(hits.snapshotItem(i))).filter(Boolean));
};
const search = () => {
  let hits = new Set(), message = "";
  const query = document.getElementById("query").value.trim();
  try { hits = found(query); message = query ? hits.size + " found" : ""; } catch (error) { message = "no XPath"; }
  document.getElementById("count").textContent = message;
  for (const row of rows) row.classList.toggle("hit", hits.has(row));
  for (const row of hits)
    for (let at = row.parentElement; at; at = at.parentElement)
      if (at.tagName === "DETAILS" && !(row.tagName === "SUMMARY" && row.parentElement === at)) at.open = true;
  const first = hits.values().next().value;
  if (first) first.scrollIntoView({ block: "center" });
};
document.getElementById("query").addEventListener("input", search);
if (location.hash) { document.getElementById("query").value = decodeURIComponent(location.hash.slice(1)); search(); }
