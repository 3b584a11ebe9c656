"use strict";
// Everything a model wrote goes into the page as text, never as markup.
(() => {
  const data = JSON.parse(document.getElementById("token-data").textContent);
  if (!data.length) return;

  const element = (id) => document.getElementById(id);
  const state = { run: 0, step: 0, group: 0, colour: "ratio", chosen: null };

  // Blue below, vermillion above: told apart with any kind of colour blindness.
  const LOW = [0, 114, 178];
  const HIGH = [213, 94, 0];
  const tint = ([red, green, blue], share) => `rgba(${red}, ${green}, ${blue}, ${(0.75 * share).toFixed(3)})`;

  // What a colour shows: the value of a token, its place on a scale around 0, and how a place is written.
  const COLOURS = {
    ratio: {
      value: (response, index) => response.ratio[index],
      place: Math.log,
      written: (place) => number(Math.exp(place)),
      words: "probability after the step's updates over that before them",
    },
    entropy_change: {
      value: (response, index) => response.entropy_change[index],
      place: (value) => value,
      written: number,
      words: "entropy after the step's updates minus that before them, nats",
    },
    mask: {
      value: (response, index) => (response.mask ? response.mask[index] : null),
      place: (value) => value,
      written: number,
      words: "1 where the objective's penalty acts",
    },
    advantage: {
      value: (response) => response.advantage,
      place: (value) => value,
      written: number,
      words: "advantage of the response",
    },
  };

  function number(value) {
    if (value === null || value === undefined) return "none";
    return Number(value.toPrecision(3)).toString().replace("-", "−");
  }

  function made(name, text, className) {
    const node = document.createElement(name);
    if (text !== undefined) node.textContent = text;
    if (className) node.className = className;
    return node;
  }

  function fill(select, names, chosen) {
    select.replaceChildren(...names.map((name, index) => new Option(name, String(index), false, index === chosen)));
  }

  const run = () => data[state.run];
  const step = () => run().steps[state.step];
  const group = () => step().groups[state.group];

  function scale() {
    const { value, place } = COLOURS[state.colour];
    let limit = 0;
    for (const response of group().responses)
      for (let index = 0; index < response.tokens.length; index += 1) {
        const held = value(response, index);
        if (held !== null) limit = Math.max(limit, Math.abs(place(held)));
      }
    return Number.isFinite(limit) && limit > 0 ? limit : 1;
  }

  function background(response, index, limit) {
    const { value, place } = COLOURS[state.colour];
    const held = value(response, index);
    if (held === null) return "transparent";
    const share = Math.max(-1, Math.min(1, place(held) / limit));
    return share < 0 ? tint(LOW, -share) : tint(HIGH, share);
  }

  function details(response, index) {
    const parts = [
      `token ${index + 1} ${JSON.stringify(response.tokens[index])}`,
      `ratio ${number(response.ratio[index])}`,
      `weight in the loss ${number(response.weight[index])}`,
      `log-probability ${number(response.old_log_prob[index])} → ${number(response.log_prob[index])}`,
      `entropy ${number(response.entropy[index])}`,
      `ΔH ${number(response.entropy_change[index])}`,
      response.mask ? `mask ${response.mask[index]}` : "no penalty",
      `advantage ${number(response.advantage)}`,
    ];
    return parts.join(" · ");
  }

  function shown(text) {
    // A token may hold a part of a character only, and a line break has no face of its own.
    return text === "" ? "◌" : text.replace(/\n/g, "↵\n");
  }

  function article(response, limit) {
    const node = made("article");
    const cut = response.tokens.length < response.length ? `, the first ${response.tokens.length} shown` : "";
    const end = response.truncated ? ", ended by the limit" : "";
    const head = `reward ${number(response.reward)}, advantage ${number(response.advantage)}, ${response.length} tokens`;
    node.append(made("small", head + cut + end));
    const body = made("p", undefined, "response");
    response.tokens.forEach((text, index) => {
      const token = made("span", shown(text), "token");
      token.style.backgroundColor = background(response, index, limit);
      token.addEventListener("mouseenter", () => {
        if (!state.chosen) element("token-detail").textContent = details(response, index);
      });
      token.addEventListener("click", () => {
        const again = state.chosen === token;
        if (state.chosen) state.chosen.classList.remove("chosen");
        state.chosen = again ? null : token;
        token.classList.toggle("chosen", !again);
        element("token-detail").textContent = details(response, index);
      });
      body.append(token);
    });
    node.append(body);
    return node;
  }

  function showScale(limit) {
    const { written, words } = COLOURS[state.colour];
    const node = element("token-scale");
    if (state.colour === "mask" && !group().responses.some((response) => response.mask)) {
      node.replaceChildren("This arm's objective has no penalty, so no mask.");
      return;
    }
    const swatch = made("span", undefined, "swatch");
    const middle = state.colour === "mask" ? "transparent" : tint(LOW, 1);
    swatch.style.background = `linear-gradient(to right, ${middle}, transparent, ${tint(HIGH, 1)})`;
    if (state.colour === "mask") swatch.style.background = `linear-gradient(to right, transparent, ${tint(HIGH, 1)})`;
    const low = state.colour === "mask" ? 0 : -limit;
    node.replaceChildren(written(low), swatch, `${written(limit)}  (${words})`);
  }

  function showProblem() {
    const pairs = [
      ["Problem", group().problem],
      ["Prompt", group().prompt],
      ["Answer", group().answer],
    ];
    element("token-problem").replaceChildren(...pairs.flatMap(([name, text]) => [made("dt", name), made("dd", text)]));
  }

  function draw() {
    state.chosen = null;
    fill(element("token-step"), run().steps.map((each) => String(each.step)), state.step);
    const groups = step().groups.length;
    element("token-group").textContent = groups ? `Problem ${state.group + 1} of ${groups}` : "No problem";
    element("token-previous").disabled = state.group === 0;
    element("token-next").disabled = state.group >= groups - 1;
    const sides = { "token-right": (reward) => reward > 0, "token-wrong": (reward) => reward <= 0 };
    if (!groups) {
      element("token-problem").replaceChildren();
      element("token-scale").textContent = "Nothing was learned from in this step: no group had right and wrong answers.";
      for (const id of Object.keys(sides)) element(id).lastElementChild.replaceChildren();
      return;
    }
    const limit = scale();
    showScale(limit);
    showProblem();
    for (const [id, belongs] of Object.entries(sides)) {
      const articles = group().responses.filter((each) => belongs(each.reward)).map((each) => article(each, limit));
      element(id).lastElementChild.replaceChildren(...(articles.length ? articles : [made("p", "none")]));
    }
  }

  function go(change) {
    Object.assign(state, change);
    draw();
  }

  element("token-run").addEventListener("change", (event) => {
    const chosen = Number(event.target.value);
    go({ run: chosen, step: data[chosen].steps.length - 1, group: 0 });
  });
  element("token-step").addEventListener("change", (event) => go({ step: Number(event.target.value), group: 0 }));
  element("token-previous").addEventListener("click", () => go({ group: state.group - 1 }));
  element("token-next").addEventListener("click", () => go({ group: state.group + 1 }));
  for (const radio of document.querySelectorAll("#token-colours input"))
    radio.addEventListener("change", () => go({ colour: radio.value }));

  fill(element("token-run"), data.map((each) => each.label), 0);
  state.step = run().steps.length - 1;
  element("token-view").hidden = false;
  draw();
})();
