/** The forms of the API's documentation: send a request and show its response. */

document.addEventListener("submit", async (event) => {
  event.preventDefault();
  const form = event.target;
  const output = form.querySelector("pre");
  const query = new URLSearchParams();
  let path = form.dataset.path.slice(1); // Relative: the service may be behind a proxy's path.
  for (const { name, value, dataset } of form.querySelectorAll("input")) {
    if (dataset.in === "path") path = path.replace(`{${name}}`, encodeURIComponent(value));
    else if (value !== "") query.append(name, value);
  }
  const token = document.getElementById("token").value.trim();
  const headers = { "Content-Type": "application/json", ...(token && { Authorization: `Bearer ${token}` }) };
  output.textContent = "Waiting for the response.";
  try {
    const response = await fetch(query.size ? `${path}?${query}` : path, { method: form.dataset.method, headers, body: form.elements.body?.value });
    output.textContent = `${response.status} ${response.statusText}\n${pretty(await response.text())}`;
  } catch (error) {
    output.textContent = error.message;
  }
});

function pretty(body) {
  try {
    return JSON.stringify(JSON.parse(body), null, 1);
  } catch {
    return body;
  }
}
