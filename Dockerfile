# The demo, as one static program:
#   docker build -t tierlock-demo . && docker run --rm tierlock-demo -h
FROM golang:1.26 AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
RUN CGO_ENABLED=0 go build -trimpath -ldflags="-s -w" -o /out/demo ./cmd/demo

FROM scratch
COPY --from=build /out/demo /demo
USER 65532:65532
ENTRYPOINT ["/demo"]
