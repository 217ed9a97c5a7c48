-- Create roles and databases when the server's folder is empty. Secret files contain the passwords.
\set ON_ERROR_STOP on
\set prefect_password `cat "${SECRETS:-/run/secrets}/prefect_database"`
\set mlflow_password `cat "${SECRETS:-/run/secrets}/mlflow_database"`
create role prefect login password :'prefect_password';
create role mlflow login password :'mlflow_password';
create database prefect owner prefect;
create database mlflow owner mlflow;
create database mlflow_auth owner mlflow;
revoke connect on database prefect, mlflow, mlflow_auth from public;
\connect prefect
create extension if not exists pg_trgm;
