"use strict";
// The page of a clip: a class and a method choose the heat; a click on a sound plays it from there.

(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const caption = document.getElementById("caption"), stage = document.getElementById("stage"), opacity = document.getElementById("opacity");
  const state = { method: Object.keys(data.heat)[0], class: 0 };

  function draw() {
    const urls = data.heat[state.method][state.class];
    for (const image of stage.querySelectorAll(".heat")) {
      image.src = urls[image.dataset.layer];
      image.style.opacity = opacity.value;
    }
    for (const key of ["method", "class"])
      for (const button of document.querySelectorAll(`button[data-${key}]`)) button.setAttribute("aria-pressed", button.dataset[key] === String(state[key]));
    caption.textContent = `${data.titles[state.method]}, ${data.labels[state.class]} (${data.scores[state.class]}). ${data.says[state.method]}`;
  }

  for (const key of ["method", "class"])
    for (const button of document.querySelectorAll(`button[data-${key}]`))
      button.addEventListener("click", () => {
        state[key] = key === "class" ? Number(button.dataset.class) : button.dataset.method;
        draw();
      });
  opacity.addEventListener("input", draw);
  draw();

  const sound = document.getElementById("sound"), playhead = document.getElementById("playhead");
  if (!sound) return;
  const follow = () => {
    playhead.hidden = sound.currentTime === 0;
    playhead.style.left = `${(100 * sound.currentTime) / (sound.duration || 1)}%`;
    if (!sound.paused) requestAnimationFrame(follow);
  };
  for (const event of ["play", "pause", "seeked"]) sound.addEventListener(event, follow);
  stage.addEventListener("click", (event) => {
    const box = stage.getBoundingClientRect();
    if (!sound.duration) return;
    sound.currentTime = (sound.duration * (event.clientX - box.left)) / box.width;
    sound.play().catch(() => {}); // a machine without a loudspeaker
  });
})();
