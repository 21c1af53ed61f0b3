# The command line in a container, with the versions that the tests use:
#
#     docker build --tag parsim .
#     docker run --rm --user "$(id -u):$(id -g)" --volume "$PWD:/work" parsim run mine.yaml
#
# Files are read and written in /work. Nothing is fetched when it runs: `--network none` is fine.

FROM python:3.11-slim AS build
WORKDIR /checkout
COPY . .
# pip cannot hash a directory, so the pins of constraints.txt are used without their hashes
RUN sed -n 's/ \\$//; /^[a-z0-9].*==/p' constraints.txt > /pins.txt
RUN python -m venv /parsim && PIP_CONSTRAINT=/pins.txt /parsim/bin/pip install --no-cache-dir .

FROM python:3.11-slim
COPY --from=build /parsim /parsim
RUN useradd --create-home parsim && mkdir /work && chown parsim /work
ENV PATH="/parsim/bin:$PATH" MPLCONFIGDIR=/tmp/matplotlib
USER parsim
WORKDIR /work
VOLUME /work
ENTRYPOINT ["parsim"]
CMD ["--help"]
